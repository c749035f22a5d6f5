/* Threads without work take no processor time: many in rrecv and one in rsend on the same socket; in rpoll, beside unaccepted clients. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define PORT 7184
#define BYTES (64 << 20)
#define READERS 16

static char data[1 << 16];

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void read_when_told(int told)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	CHECK(read(told, data, 1) == 1);
	for (size_t done = 0; done < BYTES;) {
		ssize_t got = rrecv(fd, data, sizeof(data), 0);
		CHECK(got > 0);
		done += got;
	}
	CHECK(rsend(fd, data, READERS, 0) == READERS && !rclose(fd));
}

static void *write_all(void *socket)
{
	for (size_t done = 0; done < BYTES; done += sizeof(data))
		CHECK(rsend(*(int *)socket, data, sizeof(data), 0) == sizeof(data));
	return NULL;
}

static void *read_one(void *socket)
{
	char byte;
	CHECK(rrecv(*(int *)socket, &byte, 1, 0) == 1);
	return NULL;
}

static double seconds(clockid_t clock)
{
	struct timespec time;
	CHECK(!clock_gettime(clock, &time));
	return time.tv_sec + time.tv_nsec / 1e9;
}

static double share_of_a_second_in(void (*wait)(void))
{
	double begun = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
	wait();
	return (seconds(CLOCK_PROCESS_CPUTIME_ID) - used) / (seconds(CLOCK_MONOTONIC) - begun);
}

static void sleep_a_second(void)
{
	sleep(1);
}

static int crowded;

static void poll_for_nothing(void)
{
	struct pollfd entry = {.fd = crowded};
	CHECK(rpoll(&entry, 1, 1000) == 0);
}

static void clients_that_nobody_accepts(void)
{
	struct sockaddr_in at = address();
	int clients[3];
	crowded = rsocket(AF_INET, SOCK_STREAM, 0);
	at.sin_port = htons(PORT + 1);
	CHECK(!rbind(crowded, (struct sockaddr *)&at, sizeof(at)) && !rlisten(crowded, 1));
	for (int i = 0; i < 3; i++) {
		clients[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(clients[i] >= 0 && !rfcntl(clients[i], F_SETFL, O_NONBLOCK));
		CHECK(rconnect(clients[i], (struct sockaddr *)&at, sizeof(at)) == -1);
	}
	/* Until all have asked. */
	usleep(200000);
	CHECK(share_of_a_second_in(poll_for_nothing) < 0.25);
	for (int i = 0; i < 3; i++) {
		int fd = raccept(crowded, NULL, NULL);
		CHECK(fd >= 0 && !rclose(fd) && !rclose(clients[i]));
	}
	CHECK(!rclose(crowded));
}

int main(void)
{
	struct sockaddr_in at = address();
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), ends[2], status;
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 8));
	CHECK(!pipe(ends));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		/* So that it ends with its parent. */
		CHECK(!close(ends[1]));
		read_when_told(ends[0]);
		_exit(0);
	}
	int fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	pthread_t readers[READERS], writer;
	for (int at = 0; at < READERS; at++)
		CHECK(!pthread_create(&readers[at], NULL, read_one, &fd));
	CHECK(!pthread_create(&writer, NULL, write_all, &fd));
	/* Until all that has room is written. */
	sleep(1);
	CHECK(share_of_a_second_in(sleep_a_second) < 0.25);
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(!pthread_join(writer, NULL));
	for (int at = 0; at < READERS; at++)
		CHECK(!pthread_join(readers[at], NULL));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!rclose(fd) && !rclose(listening));
	clients_that_nobody_accepts();
	return 0;
}
