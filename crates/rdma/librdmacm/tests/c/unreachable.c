/* A request without a listener is refused if a process has the address, or dies meanwhile; otherwise the address is unreachable. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7186

static const char *const somebodys = "10.9.9.1", *const loopback = "127.0.0.1", *const nobodys = "10.8.0.1";

static struct sockaddr_in address(const char *ip)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr(ip)};
}

static void socket_hears(const char *ip, int error)
{
	struct sockaddr_in to = address(ip);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(rconnect(fd, (struct sockaddr *)&to, sizeof(to)) == -1 && errno == error && !rclose(fd));
}

static void comes(struct rdma_event_channel *channel, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == type && event->status == status && !rdma_ack_cm_event(event));
}

static void identifier_hears(const char *ip, enum rdma_cm_event_type type, int status)
{
	struct sockaddr_in to = address(ip);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = {.qp_num = 1};
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	comes(channel, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_resolve_route(id, 2000));
	comes(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	CHECK(!rdma_connect(id, &param));
	comes(channel, type, status);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Dies of the first request. */
static void serve(int listens)
{
	struct sockaddr_in at = address(loopback);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&at) && !rdma_listen(id, 1) && write(listens, "l", 1) == 1);
	CHECK(!rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	kill(getpid(), SIGKILL);
}

static void who_dies_refuses(void)
{
	int ends[2], status;
	char byte;
	pid_t child;
	CHECK(!pipe(ends));
	child = fork();
	CHECK(child >= 0);
	if (child == 0)
		serve(ends[1]);
	CHECK(read(ends[0], &byte, 1) == 1);
	socket_hears(loopback, ECONNREFUSED);
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

int main(void)
{
	CHECK(!system("ip address add 10.9.9.1/32 dev lo && ip route add 10.8.0.0/16 dev lo src 10.9.9.1"));
	who_dies_refuses();
	socket_hears(somebodys, ECONNREFUSED);
	socket_hears(loopback, ECONNREFUSED);
	socket_hears(nobodys, ETIMEDOUT);
	/* The reason is "invalid service", as the specification numbers it. */
	identifier_hears(somebodys, RDMA_CM_EVENT_REJECTED, 8);
	identifier_hears(nobodys, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
	return 0;
}
