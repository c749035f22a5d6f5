/*
 * A thread that sleeps in rrecv, or in rpoll, wakes when another one shuts reading down, and one in raccept when
 * listening ends. So do threads that wait for datagrams of a socket that is closed.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7185

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void connect_and_wait(int told)
{
	struct sockaddr_in to = address();
	char byte;
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	CHECK(read(told, &byte, 1) == 0);
	CHECK(!rclose(fd));
}

static void *receive(void *socket)
{
	char byte;
	CHECK(rrecv(*(int *)socket, &byte, 1, 0) == 0);
	return NULL;
}

static void *poll_for_it(void *socket)
{
	struct pollfd entry = {.fd = *(int *)socket, .events = POLLIN};
	CHECK(rpoll(&entry, 1, -1) == 1);
	return NULL;
}

static void *accept_nobody(void *socket)
{
	CHECK(raccept(*(int *)socket, NULL, NULL) == -1);
	return NULL;
}

static void *receive_nothing(void *socket)
{
	char byte;
	CHECK(rrecv(*(int *)socket, &byte, 1, 0) == -1 && errno == EBADF);
	return NULL;
}

static void datagrams(void)
{
	struct sockaddr_in at = address();
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	pthread_t reader, poller;
	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&at, sizeof(at)));
	CHECK(!pthread_create(&reader, NULL, receive_nothing, &fd) && !pthread_create(&poller, NULL, poll_for_it, &fd));
	sleep(1);
	CHECK(!rclose(fd) && !pthread_join(reader, NULL) && !pthread_join(poller, NULL));
	fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&at, sizeof(at)) && !rclose(fd));
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
		connect_and_wait(ends[0]);
		_exit(0);
	}
	int fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	pthread_t reader, poller;
	CHECK(!pthread_create(&reader, NULL, receive, &fd) && !pthread_create(&poller, NULL, poll_for_it, &fd));
	/* Until both sleep. */
	sleep(1);
	CHECK(!rshutdown(fd, SHUT_RD));
	alarm(20);
	CHECK(!pthread_join(reader, NULL) && !pthread_join(poller, NULL));
	CHECK(!close(ends[1]));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(!rclose(fd));

	pthread_t acceptor;
	CHECK(!pthread_create(&acceptor, NULL, accept_nobody, &listening));
	sleep(1);
	CHECK(!rclose(listening) && !pthread_join(acceptor, NULL));
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rclose(listening));
	datagrams();
	return 0;
}
