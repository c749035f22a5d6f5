/*
 * A child that is forked while another thread is in a call does not wait for that thread, which it does not have: calls on
 * inherited sockets fail at once.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7181
#define THREADS 2
#define CHILDREN 150

static int connected, accepted, fresh;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *id;
static volatile int over;

static void receives(int fd)
{
	char byte;
	rrecv(fd, &byte, 1, MSG_DONTWAIT);
}

static void polls(int fd)
{
	rpoll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0);
}

static void takes_events(int fd)
{
	struct rdma_cm_event *event;
	if (!rdma_get_cm_event(channel, &event))
		rdma_ack_cm_event(event);
}

static void binds(int fd)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_cm_id *other;
	CHECK(!rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&at) && !rdma_destroy_id(other));
}

/* The work of the other threads, each with its socket. */
static void (*work)(int);

static void *works(void *fd)
{
	while (!over)
		work(*(int *)fd);
	return NULL;
}

static void uses_sockets(void)
{
	struct pollfd entry = {.fd = connected, .events = POLLIN};
	int flags;
	socklen_t length = sizeof(flags);
	char byte;
	CHECK(rrecv(connected, &byte, 1, MSG_DONTWAIT) == -1 && errno == ECONNRESET);
	CHECK(rsend(accepted, "x", 1, 0) == -1 && errno == ECONNRESET);
	CHECK(rshutdown(accepted, SHUT_WR) == -1 && errno == ECONNRESET);
	CHECK(rgetsockopt(fresh, SOL_SOCKET, SO_ERROR, &flags, &length) == -1 && errno == ECONNRESET);
	CHECK(rpoll(&entry, 1, -1) == 1 && entry.revents == (POLLERR | POLLHUP));
	CHECK(!rclose(connected) && !rclose(accepted) && !rclose(fresh));
	CHECK(fcntl(connected, F_GETFD) == -1 && fcntl(accepted, F_GETFD) == -1 && fcntl(fresh, F_GETFD) == -1);
}

static void uses_identifiers(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_cm_event *event;
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&at) == -1 && errno == EINVAL);
	CHECK(!rdma_destroy_id(id));
	/* The channel does, for the child's own. */
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (struct sockaddr *)&at));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

static void child(int number)
{
	/* Far more than it takes. */
	alarm(20);
	uses_sockets();
	/* It attaches again, which takes a while. */
	if (number % 50 == 0) {
		uses_identifiers();
		fresh = rsocket(AF_INET, SOCK_STREAM, 0);
		CHECK(fresh >= 0 && !rclose(fresh));
	} else {
		struct rdma_cm_event *event;
		CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
		CHECK(!rdma_destroy_id(id));
		rdma_destroy_event_channel(channel);
	}
	_exit(0);
}

static void fork_beside(void (*what)(int))
{
	int *fds[THREADS] = {&connected, &accepted};
	pthread_t threads[THREADS];
	work = what;
	over = 0;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, works, fds[i]));
	for (int i = 0; i < CHILDREN; i++) {
		int status;
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid)
			child(i);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	over = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	connected = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(!rconnect(connected, (struct sockaddr *)&at, sizeof(at)));
	accepted = raccept(listening, NULL, NULL);
	fresh = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(accepted >= 0 && fresh >= 0);
	channel = rdma_create_event_channel();
	CHECK(channel && !fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	fork_beside(receives);
	fork_beside(polls);
	fork_beside(takes_events);
	fork_beside(binds);
	CHECK(rsend(connected, "x", 1, 0) == 1 && rrecv(accepted, &(char){0}, 1, 0) == 1);
	CHECK(!rclose(connected) && !rclose(accepted) && !rclose(fresh) && !rclose(listening));
	return 0;
}
