/* A process that is short of memory refuses connection requests, and goes on. */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7195
/* The memory of a connection's slots, which the library keeps. */
#define MUCH (1 << 20)

static struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = PORT, .sin_addr.s_addr = INADDR_LOOPBACK};
static atomic_bool is_short;

/* In the place of the C library's. */
void *mmap(void *at, size_t length, int rights, int flags, int fd, off_t offset)
{
	if (is_short && flags & MAP_ANONYMOUS && length >= MUCH) {
		errno = ENOMEM;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, at, length, rights, flags, fd, offset);
}

static int connects(int expected)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (!expected)
		CHECK(!rconnect(fd, (struct sockaddr *)&address, sizeof(address)));
	else
		CHECK(rconnect(fd, (struct sockaddr *)&address, sizeof(address)) == -1 && errno == expected);
	return fd;
}

static int client(int told, int tells)
{
	char byte;
	CHECK(read(told, &byte, 1) == 1 && !rclose(connects(ECONNREFUSED)));
	CHECK(write(tells, "r", 1) == 1 && read(told, &byte, 1) == 1);
	CHECK(!rclose(connects(0)));
	return 0;
}

int main(void)
{
	int listening, accepted, status, there[2], back[2];
	char byte;
	pid_t child;
	address.sin_port = htons(PORT);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!pipe(there) && !pipe(back));
	child = fork();
	CHECK(child >= 0);
	alarm(50);
	if (child == 0)
		return client(there[0], back[1]);
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listening, (struct sockaddr *)&address, sizeof(address)) && !rlisten(listening, 8));
	is_short = true;
	CHECK(!rclose(connects(ENOMEM)));
	/* The library takes connections without a call of the program's. */
	CHECK(write(there[1], "b", 1) == 1 && read(back[0], &byte, 1) == 1);
	is_short = false;
	CHECK(write(there[1], "b", 1) == 1);
	accepted = raccept(listening, NULL, NULL);
	CHECK(accepted >= 0 && rrecv(accepted, &byte, 1, 0) == 0);
	CHECK(!rclose(accepted) && !rclose(listening));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
