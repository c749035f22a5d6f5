/* A port belongs to one identifier, also within a process: the second one gets an error, and takes nothing from the first. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7179
/* The addresses that bind() gives. */
#define FIRST_PORT 32768
#define END_OF_PORTS 61000

static const char *const any = "0.0.0.0", *const one = "10.9.9.1", *const two = "10.9.9.2";

static struct sockaddr_in address(const char *ip, int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(ip)};
}

static struct rdma_cm_id *identifier(enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, space));
	return id;
}

static int binds(struct rdma_cm_id *id, const char *ip, int port)
{
	struct sockaddr_in at = address(ip, port);
	errno = 0;
	return rdma_bind_addr(id, (struct sockaddr *)&at) == 0;
}

static struct rdma_cm_id *bound(enum rdma_port_space space, const char *ip, int port)
{
	struct rdma_cm_id *id = identifier(space);
	CHECK(binds(id, ip, port));
	return id;
}

static void refused(enum rdma_port_space space, const char *ip, int port)
{
	struct rdma_cm_id *id = identifier(space);
	CHECK(!binds(id, ip, port) && errno == EADDRINUSE);
	CHECK(!rdma_destroy_id(id));
}

static int rbinds(int fd, const char *ip, int port)
{
	struct sockaddr_in at = address(ip, port);
	CHECK(fd >= 0);
	return rbind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
}

/* A listener is found, with others that failed and went. */
static void listener_stays(void)
{
	struct sockaddr_in to = address(one, PORT);
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), second = rsocket(AF_INET, SOCK_STREAM, 0), accepted, status;
	pid_t client;
	CHECK(rbinds(listening, any, PORT) && !rlisten(listening, 1));
	CHECK(!rbinds(second, any, PORT) && errno == EADDRINUSE && !rclose(second));
	refused(RDMA_PS_TCP, one, PORT);
	client = fork();
	CHECK(client >= 0);
	if (client == 0) {
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(!rconnect(fd, (struct sockaddr *)&to, sizeof(to)) && !rclose(fd));
		/* Another process gets the same error, and has not taken anything either. */
		refused(RDMA_PS_TCP, two, PORT);
		_exit(0);
	}
	accepted = raccept(listening, NULL, NULL);
	CHECK(accepted >= 0 && !rclose(accepted));
	CHECK(waitpid(client, &status, 0) == client && status == 0);
	CHECK(!rclose(listening));
}

static void any_address_is_also_each(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP, one, PORT), *other = bound(RDMA_PS_TCP, two, PORT);
	refused(RDMA_PS_TCP, any, PORT);
	refused(RDMA_PS_TCP, one, PORT);
	/* Other port spaces have their own ports. */
	CHECK(!rdma_destroy_id(bound(RDMA_PS_UDP, any, PORT)) && !rdma_destroy_id(bound(RDMA_PS_IB, any, PORT)));
	CHECK(!rdma_destroy_id(id));
	refused(RDMA_PS_TCP, any, PORT);
	CHECK(!rdma_destroy_id(other));
	id = bound(RDMA_PS_TCP, any, PORT);
	refused(RDMA_PS_TCP, one, PORT);
	CHECK(!rdma_destroy_id(id));
}

static int listens(int family, const struct sockaddr *at, socklen_t length)
{
	int fd = rsocket(family, SOCK_STREAM, 0), on = 1;
	CHECK(fd >= 0 && (family == AF_INET || !rsetsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on))));
	CHECK(!rbind(fd, at, length) && !rlisten(fd, 4));
	return fd;
}

/* Some of many ports, as the right one may be hit by chance. */
static void each_family_has_its_own_listener(void)
{
	for (int port = PORT; port < PORT + 12; port++) {
		struct sockaddr_in6 at6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
		struct sockaddr_in at = address(any, port), to = address(one, port);
		int six = listens(AF_INET6, (struct sockaddr *)&at6, sizeof(at6));
		int four = listens(AF_INET, (struct sockaddr *)&at, sizeof(at));
		struct pollfd both[] = {{.fd = six, .events = POLLIN}, {.fd = four, .events = POLLIN}};
		pid_t client = fork();
		int status, accepted;
		CHECK(client >= 0);
		if (client == 0) {
			int fd = rsocket(AF_INET, SOCK_STREAM, 0);
			CHECK(!rconnect(fd, (struct sockaddr *)&to, sizeof(to)) && !rclose(fd));
			_exit(0);
		}
		CHECK(rpoll(both, 2, 10000) == 1 && both[1].revents == POLLIN);
		accepted = raccept(four, NULL, NULL);
		CHECK(accepted >= 0 && !rclose(accepted));
		CHECK(waitpid(client, &status, 0) == client && status == 0);
		CHECK(!rclose(six) && !rclose(four));
	}
}

static void datagrams_as_well(void)
{
	int first = rsocket(AF_INET, SOCK_DGRAM, 0), second = rsocket(AF_INET, SOCK_DGRAM, 0), number = 0;
	struct sockaddr_in to = address(one, PORT);
	CHECK(rbinds(first, any, PORT) && !rbinds(second, one, PORT) && errno == EADDRINUSE);
	CHECK(rbinds(second, one, PORT + 1));
	CHECK(rsendto(second, "a", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
	while (rrecv(first, &number, 1, MSG_DONTWAIT) == -1) {
		CHECK(errno == EAGAIN);
		rrecv(second, &number, 1, MSG_DONTWAIT);
	}
	CHECK(number == 'a' && !rclose(second) && !rclose(first));
}

/* A port that partly belongs to another process cannot be bound here. */
static void failed_in_part(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP, two, PORT);
	pid_t other = fork();
	int status;
	CHECK(other >= 0);
	if (other == 0) {
		struct rdma_cm_id *own;
		refused(RDMA_PS_TCP, any, PORT);
		own = bound(RDMA_PS_TCP, one, PORT);
		refused(RDMA_PS_TCP, any, PORT);
		refused(RDMA_PS_TCP, one, PORT);
		CHECK(!rdma_destroy_id(own));
		_exit(0);
	}
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	CHECK(!rdma_destroy_id(id));
}

static void ports_that_are_given_are_free(void)
{
	struct rdma_cm_id *id = bound(RDMA_PS_TCP, any, 0), *taken, *next;
	int port = ntohs(rdma_get_src_port(id)) + 1;
	if (port == END_OF_PORTS)
		port = FIRST_PORT;
	taken = bound(RDMA_PS_TCP, one, port);
	next = bound(RDMA_PS_TCP, any, 0);
	CHECK(rdma_get_src_port(next) && ntohs(rdma_get_src_port(next)) != port);
	CHECK(!rdma_destroy_id(next) && !rdma_destroy_id(taken) && !rdma_destroy_id(id));
}

int main(void)
{
	CHECK(!system("ip address add 10.9.9.1/32 dev lo && ip address add 10.9.9.2/32 dev lo"));
	listener_stays();
	any_address_is_also_each();
	each_family_has_its_own_listener();
	datagrams_as_well();
	failed_in_part();
	ports_that_are_given_are_free();
	return 0;
}
