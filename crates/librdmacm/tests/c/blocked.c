/* Threads that can do nothing, many in rrecv and one in rsend on the same socket, take no processor's time. */
#include <arpa/inet.h>
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
	double begun = seconds(CLOCK_MONOTONIC), used = seconds(CLOCK_PROCESS_CPUTIME_ID);
	sleep(1);
	double share = (seconds(CLOCK_PROCESS_CPUTIME_ID) - used) / (seconds(CLOCK_MONOTONIC) - begun);
	CHECK(share < 0.25);
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(!pthread_join(writer, NULL));
	for (int at = 0; at < READERS; at++)
		CHECK(!pthread_join(readers[at], NULL));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!rclose(fd) && !rclose(listening));
	return 0;
}
