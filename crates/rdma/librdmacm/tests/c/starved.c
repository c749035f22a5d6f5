/* A process that can have no more descriptors keeps its connections when another process asks for one, which waits. */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7193
/* Descriptors. */
#define MOST 100

static void echoes(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char byte;
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	while (rrecv(fd, &byte, 1, 0) == 1)
		CHECK(rsend(fd, &byte, 1, 0) == 1);
	CHECK(!rclose(fd));
}

/* A process that echoes, once it gets the start message. */
static pid_t client(int begin)
{
	pid_t child = fork();
	char byte;
	CHECK(child >= 0);
	if (child > 0)
		return child;
	CHECK(read(begin, &byte, 1) == 1);
	echoes();
	_exit(0);
}

static void is_echoed(int fd)
{
	char byte = 'e';
	CHECK(rsend(fd, &byte, 1, 0) == 1 && rrecv(fd, &byte, 1, 0) == 1);
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int ends[2], listening, first, second, status;
	int taken[MOST], count = 0;
	pid_t children[2];
	alarm(50);
	CHECK(!pipe(ends));
	for (int i = 0; i < 2; i++)
		children[i] = client(ends[0]);
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 8));
	CHECK(write(ends[1], "b", 1) == 1);
	first = raccept(listening, NULL, NULL);
	CHECK(first >= 0);
	is_echoed(first);
	CHECK(!setrlimit(RLIMIT_NOFILE, &(struct rlimit){MOST, MOST}));
	while ((taken[count] = dup(first)) >= 0)
		count++;
	CHECK(errno == EMFILE && write(ends[1], "b", 1) == 1);
	for (int i = 0; i < 100; i++) {
		usleep(10000);
		is_echoed(first);
	}
	while (count > 0)
		CHECK(!close(taken[--count]));
	second = raccept(listening, NULL, NULL);
	CHECK(second >= 0);
	is_echoed(second);
	is_echoed(first);
	CHECK(!rclose(first) && !rclose(second) && !rclose(listening));
	for (int i = 0; i < 2; i++)
		CHECK(waitpid(children[i], &status, 0) == children[i] && status == 0);
	return 0;
}
