/* A thread that waits in a call sees new data while another one looks after the same socket with rpoll. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7183
#define ROUNDS 5000

static atomic_bool is_over;

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void ask(void)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	for (int i = 0, answer; i < ROUNDS; i++) {
		CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i));
		CHECK(rrecv(fd, &answer, sizeof(answer), MSG_WAITALL) == sizeof(answer) && answer == i);
	}
	CHECK(!rclose(fd));
}

static void *answer(void *socket)
{
	int fd = *(int *)socket;
	for (int i, round = 0; round < ROUNDS; round++) {
		CHECK(rrecv(fd, &i, sizeof(i), MSG_WAITALL) == sizeof(i) && i == round);
		CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i));
	}
	is_over = true;
	return NULL;
}

int main(void)
{
	struct sockaddr_in at = address();
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 8));
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		ask();
		_exit(0);
	}
	int fd = raccept(listening, NULL, NULL), status;
	CHECK(fd >= 0);
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, answer, &fd));
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	for (int limit = 0; !is_over; limit = !limit)
		CHECK(rpoll(&entry, 1, limit) >= 0);
	CHECK(!pthread_join(thread, NULL) && waitpid(child, &status, 0) == child && status == 0);
	CHECK(!rclose(fd) && !rclose(listening));
	return 0;
}
