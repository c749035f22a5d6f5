/* Times beyond the clock, parts without room and closed descriptors give the same results as with other
   sockets. */
#include <arpa/inet.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"

#define PORT 7190

static int near, far;

static int selected(long seconds, long microseconds)
{
	struct timeval timeout = {.tv_sec = seconds, .tv_usec = microseconds};
	fd_set reads;
	FD_ZERO(&reads);
	FD_SET(near, &reads);
	return rselect(near + 1, &reads, NULL, NULL, &timeout);
}

static void *sends_later(void *unused)
{
	usleep(100000);
	CHECK(rsend(far, "a", 1, 0) == 1);
	return unused;
}

static void times(void)
{
	CHECK(selected(0, 0) == 0);
	CHECK(selected(-1, 0) == -1 && errno == EINVAL);
	CHECK(selected(0, -1) == -1 && errno == EINVAL);
	CHECK(rsend(far, "a", 1, 0) == 1 && selected(LONG_MAX, 0) == 1);
}

static void parts(void)
{
	char got[4];
	struct iovec into[] = {{got, 0}, {got, sizeof(got)}};
	pthread_t sender;
	CHECK(rrecv(near, got, 1, 0) == 1);
	CHECK(!pthread_create(&sender, NULL, sends_later, NULL));
	CHECK(rreadv(near, into, 2) == 1 && got[0] == 'a');
	CHECK(!pthread_join(sender, NULL));
}

static void closed_descriptors(void)
{
	struct timeval none = {0};
	struct pollfd entries[2] = {{.fd = near, .events = POLLIN}};
	fd_set reads;
	int closed = dup(0);
	CHECK(closed >= 0 && !close(closed));
	entries[1] = (struct pollfd){.fd = closed, .events = POLLIN};
	CHECK(rpoll(entries, 2, -1) == 1 && entries[0].revents == 0 && entries[1].revents == POLLNVAL);
	FD_ZERO(&reads);
	FD_SET(near, &reads);
	FD_SET(closed, &reads);
	CHECK(rselect(closed + 1, &reads, NULL, NULL, NULL) == -1 && errno == EBADF);
	CHECK(FD_ISSET(near, &reads) && FD_ISSET(closed, &reads));
	CHECK(rselect(-1, &reads, NULL, NULL, &none) == -1 && errno == EINVAL);
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	alarm(20);
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	near = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rconnect(near, (struct sockaddr *)&at, sizeof(at)));
	far = raccept(listening, NULL, NULL);
	CHECK(far >= 0);
	times();
	parts();
	closed_descriptors();
	CHECK(!rclose(near) && !rclose(far) && !rclose(listening));
	return 0;
}
