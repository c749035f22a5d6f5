/* Options report the actual values, also after a program has asked for others. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>

#include "check.h"

#define PORT 7184

static int value(int fd, int level, int option)
{
	int got = -1;
	socklen_t length = sizeof(got);
	CHECK(!rgetsockopt(fd, level, option, &got, &length) && length == sizeof(got));
	return got;
}

static void *accepts(void *listening)
{
	static int accepted;
	accepted = raccept(*(int *)listening, NULL, NULL);
	CHECK(accepted >= 0);
	return &accepted;
}

/* As much as SO_SNDBUF says goes into a socket with an idle reader. */
static void fills(int fd)
{
	static char bytes[1 << 16];
	long done = 0, got;
	while ((got = rsend(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
		done += got;
	CHECK(errno == EAGAIN && done == value(fd, SOL_SOCKET, SO_SNDBUF));
}

static void streams(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), fd = rsocket(AF_INET, SOCK_STREAM, 0), wanted = 1000;
	pthread_t thread;
	void *accepted;
	CHECK(value(fd, IPPROTO_TCP, TCP_MAXSEG) == 2048 && value(fd, SOL_SOCKET, SO_ACCEPTCONN) == 0);
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	CHECK(value(listening, SOL_SOCKET, SO_ACCEPTCONN) == 1);
	CHECK(!pthread_create(&thread, NULL, accepts, &listening));
	CHECK(!rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted)));
	CHECK(!rconnect(fd, (struct sockaddr *)&at, sizeof(at)) && !pthread_join(thread, &accepted));
	fills(fd);
	CHECK(value(fd, SOL_SOCKET, SO_RCVBUF) == value(fd, SOL_SOCKET, SO_SNDBUF));
	CHECK(value(fd, IPPROTO_TCP, TCP_MAXSEG) == 4096 && value(fd, SOL_RDMA, RDMA_INLINE) == 0);
	CHECK(value(fd, SOL_RDMA, RDMA_SQSIZE) > 0 && value(fd, SOL_RDMA, RDMA_RQSIZE) > 0);
	CHECK(value(fd, SOL_RDMA, RDMA_IOMAPSIZE) > 0 && value(fd, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(value(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM && value(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
	CHECK(value(*(int *)accepted, SOL_SOCKET, SO_DOMAIN) == AF_INET);
	CHECK(!rclose(*(int *)accepted) && !rclose(fd) && !rclose(listening));
}

static void datagrams(void)
{
	int fd = rsocket(AF_INET6, SOCK_DGRAM, 0);
	CHECK(value(fd, SOL_SOCKET, SO_TYPE) == SOCK_DGRAM && value(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_UDP);
	CHECK(value(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET6 && value(fd, SOL_SOCKET, SO_SNDBUF) > 0);
	CHECK(value(fd, SOL_SOCKET, SO_RCVBUF) > 0 && value(fd, SOL_RDMA, RDMA_SQSIZE) > 0 && !rclose(fd));
}

int main(void)
{
	streams();
	datagrams();
	return 0;
}
