/* An orderly end of a stream differs from a cut: only the first reads as an end. */
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7182
#define ROUNDS 1000

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int connected(void)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	return fd;
}

static int listening(void)
{
	struct sockaddr_in at = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&at, sizeof(at)) && !rlisten(fd, 8));
	return fd;
}

static pid_t forked(void (*peer)(void))
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		peer();
		_exit(0);
	}
	return child;
}

static void open_write_close(void)
{
	for (int i = 0; i < ROUNDS; i++) {
		int fd = connected();
		CHECK(rsend(fd, &i, sizeof(i), 0) == sizeof(i) && !rclose(fd));
	}
}

static void write_and_stay(void)
{
	CHECK(rsend(connected(), "abc", 3, 0) == 3);
	pause();
}

static void write_and_exit(void)
{
	CHECK(rsend(connected(), "abc", 3, 0) == 3);
	exit(0);
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event) && event->event == type && !rdma_ack_cm_event(event));
}

/* Asks as a socket does, and never says that it is ready. */
static void leave_before_the_start(void)
{
	static const char agreement[] = {'r', 's', 'k', 1, 48, 16};
	struct rdma_conn_param param = {.private_data = agreement, .private_data_len = sizeof(agreement), .qp_num = 1};
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in to = address();
	struct rdma_cm_id *id;
	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_connect(id, &param));
	expect(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(!rdma_disconnect(id));
	expect(channel, RDMA_CM_EVENT_DISCONNECTED);
}

static void pausing(int signal)
{
	(void)signal;
	usleep(1000);
}

/* Makes this thread pause every now and then, wherever it is: between two looks at its socket, for one. */
static void pause_often(int on)
{
	struct itimerval every = {{0, on ? 1700 : 0}, {0, on ? 1700 : 0}};
	signal(SIGALRM, on ? pausing : SIG_IGN);
	CHECK(!setitimer(ITIMER_REAL, &every, NULL));
}

static ssize_t receive(int fd, void *at, size_t length)
{
	ssize_t got;
	do
		got = rrecv(fd, at, length, MSG_DONTWAIT);
	while (got == -1 && errno == EAGAIN);
	return got;
}

static void closed_is_an_end(int at)
{
	pid_t peer = forked(open_write_close);
	int status;
	pause_often(1);
	for (int i = 0; i < ROUNDS; i++) {
		int number = -1, fd = raccept(at, NULL, NULL);
		CHECK(fd >= 0 && receive(fd, &number, sizeof(number)) == sizeof(number) && number == i);
		CHECK(receive(fd, &number, sizeof(number)) == 0 && rrecv(fd, &number, sizeof(number), 0) == 0);
		CHECK(!rclose(fd));
	}
	pause_often(0);
	CHECK(waitpid(peer, &status, 0) == peer && status == 0);
}

static void expect_reset(int fd)
{
	char byte;
	for (int i = 0; i < 2; i++)
		CHECK(rrecv(fd, &byte, 1, 0) == -1 && errno == ECONNRESET);
	CHECK(rsend(fd, "x", 1, 0) == -1 && errno == ECONNRESET);
	CHECK(!rclose(fd));
}

/* A process that exits without closing its sockets has ended them, like kernel sockets. */
static void an_exit_is_an_end(int at)
{
	pid_t peer = forked(write_and_exit);
	int status, fd = raccept(at, NULL, NULL);
	char got[4];
	CHECK(fd >= 0 && rrecv(fd, got, 4, MSG_WAITALL) == 3 && got[2] == 'c' && rrecv(fd, got, 1, 0) == 0);
	CHECK(waitpid(peer, &status, 0) == peer && status == 0 && !rclose(fd));
}

static void cut_off_is_none(int at)
{
	pid_t peer = forked(write_and_stay);
	struct pollfd wait = {.fd = raccept(at, NULL, NULL), .events = POLLIN};
	char got[3];
	int status;
	CHECK(wait.fd >= 0 && rrecv(wait.fd, got, 1, MSG_WAITALL) == 1);
	CHECK(!kill(peer, SIGKILL));
	CHECK(waitpid(peer, &status, 0) == peer);
	/* Arrived data is read first. */
	CHECK(rrecv(wait.fd, got, 2, MSG_WAITALL) == 2 && got[0] == 'b' && got[1] == 'c');
	CHECK(rpoll(&wait, 1, -1) == 1 && wait.revents & POLLIN);
	expect_reset(wait.fd);
}

static void never_started_is_none(int at)
{
	pid_t peer = forked(leave_before_the_start);
	int status, fd = raccept(at, NULL, NULL);
	CHECK(fd >= 0);
	expect_reset(fd);
	CHECK(waitpid(peer, &status, 0) == peer && status == 0);
}

int main(void)
{
	int at = listening();
	closed_is_an_end(at);
	an_exit_is_an_end(at);
	cut_off_is_none(at);
	never_started_is_none(at);
	CHECK(!rclose(at));
	return 0;
}
