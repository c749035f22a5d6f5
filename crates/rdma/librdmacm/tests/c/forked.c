/*
 * A forked child has no connections: its sends on an inherited socket are refused, not lost, and the parent goes on.
 * Its own sockets are not taken for inherited ones.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7180

static struct sockaddr_in at_port(int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static struct sockaddr_in address(void)
{
	return at_port(PORT);
}

static int listens(int port)
{
	struct sockaddr_in at = at_port(port);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0), attempts = 0;
	CHECK(fd >= 0);
	/* Another process' port is free a moment after it was closed. */
	while (rbind(fd, (struct sockaddr *)&at, sizeof(at))) {
		CHECK(errno == EADDRINUSE && attempts++ < 1000);
		usleep(10000);
	}
	CHECK(!rlisten(fd, 1));
	return fd;
}

static void expect_end(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void send_in_child(int fd)
{
	pid_t child = fork();
	if (child == 0) {
		for (int i = 0; i < 2; i++)
			CHECK(rsend(fd, "x", 1, 0) == -1 && errno == ECONNRESET);
		_exit(0);
	}
	expect_end(child);
	child = fork();
	if (child == 0) {
		CHECK(riowrite(fd, "x", 1, 0, 0) == (size_t)-1 && errno == ECONNRESET);
		_exit(0);
	}
	expect_end(child);
}

/* Connection requests are the parent's to accept. */
static void accept_in_child(int listening)
{
	pid_t child = fork();
	if (child == 0) {
		struct sockaddr_in at = at_port(PORT + 2);
		CHECK(raccept(listening, NULL, NULL) == -1 && errno == ECONNRESET);
		CHECK(rbind(listening, (struct sockaddr *)&at, sizeof(at)) == -1 && errno == ECONNRESET);
		CHECK(rlisten(listening, 1) == -1 && errno == ECONNRESET);
		CHECK(rpoll(&(struct pollfd){.fd = listening, .events = POLLIN}, 1, -1) == 1);
		_exit(0);
	}
	expect_end(child);
}

static void client(void)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char mapped;
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	/* The other side has memory to be written to. */
	CHECK(rrecv(fd, &mapped, 1, 0) == 1 && rsend(fd, "a", 1, 0) == 1);
	send_in_child(fd);
	CHECK(rsend(fd, "b", 1, 0) == 1 && !rclose(fd));
}

static void *echoes(void *fd)
{
	char byte;
	while (rrecv(*(int *)fd, &byte, 1, 0) == 1)
		CHECK(rsend(*(int *)fd, &byte, 1, 0) == 1);
	return NULL;
}

/* A child that polls inherited sockets takes nothing from the parent that waits. */
static void look_in_child(int fd, int other)
{
	pthread_t thread;
	char byte = 'a';
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct pollfd entries[] = {{.fd = fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
		for (;;)
			rpoll(entries, 2, 0);
	}
	CHECK(!pthread_create(&thread, NULL, echoes, &other));
	for (int i = 0; i < 2000; i++) {
		/* So that it sleeps. */
		usleep(50);
		CHECK(rsend(fd, &byte, 1, 0) == 1 && rrecv(fd, &byte, 1, 0) == 1);
	}
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	CHECK(!rshutdown(fd, SHUT_WR) && !pthread_join(thread, NULL));
}

static void *accepts(void *listening)
{
	static int fd;
	fd = raccept(*(int *)listening, NULL, NULL);
	CHECK(fd >= 0);
	return &fd;
}

static void looked_at(void)
{
	struct sockaddr_in to = address();
	int listening = listens(PORT), fd = rsocket(AF_INET, SOCK_STREAM, 0);
	pthread_t thread;
	void *accepted;
	CHECK(!pthread_create(&thread, NULL, accepts, &listening));
	CHECK(!rconnect(fd, (struct sockaddr *)&to, sizeof(to)) && !pthread_join(thread, &accepted));
	look_in_child(fd, *(int *)accepted);
	CHECK(!rclose(fd) && !rclose(*(int *)accepted) && !rclose(listening));
}

static void connect_to(int port)
{
	struct sockaddr_in to = at_port(port);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)) && !rclose(fd));
}

/* The child closes its inherited sockets when it has sockets of its own, one of them at the same port. */
static void close_in_child(void)
{
	int inherited = listens(PORT), ends[2], own, again, fd;
	pid_t child;
	char byte;
	CHECK(!pipe(ends));
	child = fork();
	CHECK(child >= 0);
	if (child > 0) {
		CHECK(!rclose(inherited) && write(ends[1], "x", 1) == 1);
		return expect_end(child);
	}
	CHECK(read(ends[0], &byte, 1) == 1);
	own = listens(PORT + 1);
	again = listens(PORT);
	CHECK(!rclose(inherited));
	for (int i = 0; i < 2; i++) {
		pid_t client = fork();
		if (client == 0) {
			connect_to(PORT + i);
			_exit(0);
		}
		fd = raccept(i ? own : again, NULL, NULL);
		CHECK(fd >= 0 && !rclose(fd));
		expect_end(client);
	}
	/* As it exits it ends its own sockets, not its parent's. */
	exit(0);
}

int main(void)
{
	int fd, listening;
	char memory[16] = "", got[16];
	pid_t child;
	/* First, when the child's own sockets would have the numbers of the inherited ones. */
	close_in_child();
	looked_at();
	listening = listens(PORT);
	child = fork();
	if (child == 0) {
		client();
		exit(0);
	}
	CHECK(rpoll(&(struct pollfd){.fd = listening, .events = POLLIN}, 1, -1) == 1);
	accept_in_child(listening);
	fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0 && riomap(fd, memory, sizeof(memory), PROT_WRITE, 0, 0) == 0 && rsend(fd, "m", 1, 0) == 1);
	CHECK(rrecv(fd, got, sizeof(got), MSG_WAITALL) == 2 && got[0] == 'a' && got[1] == 'b');
	CHECK(memory[0] == 0 && !rclose(fd) && !rclose(listening));
	expect_end(child);
	return 0;
}
