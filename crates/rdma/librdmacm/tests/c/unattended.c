/*
 * Operations of a socket proceed while the program does something else: its datagrams leave, and connections are made.
 * That harms neither children nor a thread that closes the socket meanwhile.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7185
#define TIMES 50
/* In milliseconds; far less is needed. */
#define PATIENCE 5000

static struct sockaddr_in at_port(int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int bound(int kind, int port)
{
	struct sockaddr_in at = at_port(port);
	int fd = rsocket(AF_INET, kind, 0);
	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&at, sizeof(at)));
	return fd;
}

static void sends(int fd, int port)
{
	struct sockaddr_in to = at_port(port);
	CHECK(rsendto(fd, "a", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
}

static void comes(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	char got;
	CHECK(rpoll(&entry, 1, PATIENCE) == 1 && rrecv(fd, &got, 1, 0) == 1 && got == 'a');
}

static int connecting(void)
{
	struct sockaddr_in to = at_port(PORT);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rfcntl(fd, F_SETFL, O_NONBLOCK));
	CHECK(rconnect(fd, (struct sockaddr *)&to, sizeof(to)) == -1 && errno == EINPROGRESS);
	return fd;
}

static int asked(int listening)
{
	struct pollfd entry = {.fd = listening, .events = POLLIN};
	return rpoll(&entry, 1, PATIENCE) == 1;
}

/* The other side sends when it knows that this one is ready. */
static void connections(void)
{
	int listening = bound(SOCK_STREAM, PORT), fd, accepted;
	CHECK(!rlisten(listening, TIMES));
	fd = connecting();
	CHECK(asked(listening));
	accepted = raccept(listening, NULL, NULL);
	CHECK(rsend(accepted, "a", 1, 0) == 1);
	comes(fd);
	CHECK(!rclose(fd) && !rclose(accepted));
	for (int i = 0; i < TIMES; i++)
		CHECK(!rclose(connecting()));
	CHECK(!rclose(listening));
}

/* As many as listen() allows. */
static void clients_are_connected_before_they_are_accepted(void)
{
	int listening = bound(SOCK_STREAM, PORT), clients[TIMES];
	struct sockaddr_in to = at_port(PORT);
	CHECK(!rlisten(listening, TIMES));
	for (int i = 0; i < TIMES; i++) {
		clients[i] = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(!rconnect(clients[i], (struct sockaddr *)&to, sizeof(to)) && rsend(clients[i], "a", 1, 0) == 1);
	}
	for (int i = 0; i < TIMES; i++) {
		int accepted = raccept(listening, NULL, NULL);
		comes(accepted);
		CHECK(!rclose(accepted));
	}
	for (int i = 0; i < TIMES; i++)
		CHECK(!rclose(clients[i]));
	CHECK(!rclose(listening));
}

static void datagrams(void)
{
	int receiver = bound(SOCK_DGRAM, PORT), sender = bound(SOCK_DGRAM, PORT + 1);
	sends(sender, PORT);
	comes(receiver);
	CHECK(!rclose(sender));
	/* The port is free as soon as it is closed. */
	for (int i = 0; i < TIMES; i++) {
		sender = bound(SOCK_DGRAM, PORT + 1);
		sends(sender, PORT);
		CHECK(!rclose(sender));
		comes(receiver);
	}
	CHECK(!rclose(receiver));
}

static void children(void)
{
	int receiver = bound(SOCK_DGRAM, PORT), sender, status;
	for (int i = 0; i < TIMES; i++) {
		pid_t child;
		sender = rsocket(AF_INET, SOCK_DGRAM, 0);
		sends(sender, PORT);
		child = fork();
		if (child == 0) {
			CHECK(rfcntl(sender, F_GETFL) == -1 && errno == ECONNRESET);
			_exit(0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
		comes(receiver);
		CHECK(!rclose(sender));
	}
	CHECK(!rclose(receiver));
}

int main(void)
{
	datagrams();
	connections();
	clients_are_connected_before_they_are_accepted();
	children();
	return 0;
}
