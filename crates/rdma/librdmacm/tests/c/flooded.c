/* A datagram socket that is full, because its program does not read, goes on sending. */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>

#include "check.h"

/* More than the datagrams that wait to be read, and the sends that may be under way. */
#define FLOOD 2000
#define ANSWERS 500

static struct sockaddr_in address(int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int bound(int port)
{
	struct sockaddr_in at = address(port);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&at, sizeof(at)));
	return fd;
}

static void send_to(int fd, int port, int number)
{
	struct sockaddr_in to = address(port);
	CHECK(rsendto(fd, &number, sizeof(number), 0, (struct sockaddr *)&to, sizeof(to)) == sizeof(number));
}

/* The next datagram. The datagrams of `from` leave at its next call after its destination was found. */
static int next(int fd, int from, int flags)
{
	int number, other;
	while (rrecv(fd, &number, sizeof(number), flags | MSG_DONTWAIT) == -1) {
		CHECK(errno == EAGAIN);
		rrecv(from, &other, sizeof(other), MSG_PEEK | MSG_DONTWAIT);
	}
	return number;
}

int main(void)
{
	int floods = bound(7176), full = bound(7177);
	for (int i = 0; i < FLOOD; i++) {
		send_to(floods, 7177, i);
		/* Arrived data is taken, and left there. */
		CHECK(next(full, floods, MSG_PEEK) == 0);
	}
	for (int i = 0; i < ANSWERS; i++) {
		send_to(full, 7176, i);
		CHECK(next(floods, full, 0) == i);
	}
	CHECK(next(full, floods, 0) == 0 && next(full, floods, 0) == 1);
	CHECK(!rclose(floods) && !rclose(full));
	return 0;
}
