/* Threads take events while the listener goes, alone or to another channel: the events of a request come after it, on
 * its channel. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"

#define PORT 7194
#define CLIENTS 128
#define ROUNDS 5

static struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = PORT, .sin_addr.s_addr = INADDR_LOOPBACK};

/* The listener's channels, and the threads that take from them. */
static struct rdma_event_channel *channels[2], *clients;
static pthread_t readers[2];
static atomic_int over, still, asked, left;

static void comes(enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(clients, &event) && event->event == expected && !rdma_ack_cm_event(event));
}

static struct rdma_cm_id *asks(void)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(clients, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	comes(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	comes(RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){.qp_num = 1}));
	return id;
}

static void all_ask_and_leave(void)
{
	struct rdma_cm_id *ids[CLIENTS];
	for (int i = 0; i < CLIENTS; i++)
		ids[i] = asks();
	/* Until they have come, and then gone. */
	usleep(100000);
	for (int i = 0; i < CLIENTS; i++)
		CHECK(!rdma_destroy_id(ids[i]));
	usleep(100000);
}

static struct rdma_cm_id *listens(void)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channels[0], &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 0));
	return id;
}

static void take(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	enum rdma_cm_event_type type;
	if (rdma_get_cm_event(channel, &event)) {
		CHECK(errno == EAGAIN);
		return;
	}
	id = event->id;
	type = event->event;
	CHECK(id && id->channel == channel && !rdma_ack_cm_event(event));
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		id->context = channel;
		asked++;
	} else {
		CHECK(type == RDMA_CM_EVENT_REJECTED && id->context == channel && !rdma_destroy_id(id));
		left++;
	}
}

static void *takes(void *channel)
{
	struct pollfd readable = {.fd = ((struct rdma_event_channel *)channel)->fd, .events = POLLIN};
	while (!over)
		if (poll(&readable, 1, 1) == 1)
			take(channel);
	return NULL;
}

static void begin(void)
{
	over = asked = left = 0;
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&readers[i], NULL, takes, channels[i]));
}

/* Once nothing is queued any more, and all requesters have left. */
static void end(void)
{
	while (asked != left || poll(&(struct pollfd){channels[0]->fd, POLLIN}, 1, 0) || poll(&(struct pollfd){channels[1]->fd, POLLIN}, 1, 0))
		usleep(1000);
	over = 1;
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(readers[i], NULL));
}

static void until_some_are_taken(void)
{
	while (!asked)
		;
}

static void listener_goes(void)
{
	struct rdma_cm_id *listener = listens();
	all_ask_and_leave();
	begin();
	until_some_are_taken();
	CHECK(!rdma_destroy_id(listener));
	end();
}

static void listener_goes_to_another_channel(void)
{
	struct rdma_cm_id *listener = listens();
	all_ask_and_leave();
	begin();
	until_some_are_taken();
	CHECK(!rdma_migrate_id(listener, channels[1]));
	end();
	CHECK(asked == CLIENTS && left == CLIENTS && !rdma_destroy_id(listener));
}

static void *goes_to_and_fro(void *listener)
{
	for (int to = 1; !still; to = !to)
		CHECK(!rdma_migrate_id(listener, channels[to]));
	return NULL;
}

static void listener_is_on_its_way(void)
{
	struct rdma_cm_id *listener = listens();
	pthread_t mover;
	still = 0;
	begin();
	CHECK(!pthread_create(&mover, NULL, goes_to_and_fro, listener));
	all_ask_and_leave();
	still = 1;
	CHECK(!pthread_join(mover, NULL));
	end();
	CHECK(asked == CLIENTS && left == CLIENTS && !rdma_destroy_id(listener));
}

int main(void)
{
	address.sin_port = htons(PORT);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	alarm(50);
	clients = rdma_create_event_channel();
	CHECK(clients);
	for (int i = 0; i < 2; i++) {
		channels[i] = rdma_create_event_channel();
		CHECK(channels[i] && !fcntl(channels[i]->fd, F_SETFL, O_NONBLOCK));
	}
	for (int round = 0; round < ROUNDS; round++) {
		listener_goes();
		listener_goes_to_another_channel();
		listener_is_on_its_way();
	}
	return 0;
}
