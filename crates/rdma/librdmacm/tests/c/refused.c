/* A refused client sees the same as with hardware, and gets its posted requests back. */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

#define PORT 7192

static struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = PORT, .sin_addr.s_addr = INADDR_LOOPBACK};

static struct rdma_cm_id *identifier(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, space));
	return id;
}

static struct rdma_cm_id *listens(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = identifier(channel, space);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 1));
	return id;
}

static struct rdma_cm_event *heard(struct rdma_event_channel *from, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(from, &event) && event->event == expected);
	return event;
}

static struct rdma_cm_id *resolves(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = identifier(channel, space);
	struct ibv_qp_init_attr attr = {.qp_type = space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	rdma_ack_cm_event(heard(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(id, 2000));
	rdma_ack_cm_event(heard(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK(!rdma_create_qp(id, NULL, &attr));
	return id;
}

static void ends(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

static void connections(struct rdma_event_channel *servers, struct rdma_event_channel *channel)
{
	struct rdma_cm_id *listener = listens(servers, RDMA_PS_TCP), *id = resolves(channel, RDMA_PS_TCP), *asked;
	struct rdma_cm_event *event;
	struct ibv_wc completion;
	struct ibv_recv_wr *bad;
	CHECK(!ibv_post_recv(id->qp, &(struct ibv_recv_wr){0}, &bad));
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){.retry_count = 7}));
	CHECK(rdma_connect(id, &(struct rdma_conn_param){.retry_count = 7}) == -1 && errno == EINVAL);
	event = heard(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(!rdma_ack_cm_event(event) && !rdma_reject(asked, "no", 2));
	event = heard(channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && event->param.conn.private_data_len == 148);
	CHECK(*(const char *)event->param.conn.private_data == 'n' && !rdma_ack_cm_event(event));
	CHECK(ibv_poll_cq(id->recv_cq, 1, &completion) == 1 && completion.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(rdma_connect(id, &(struct rdma_conn_param){.retry_count = 7}) == -1 && errno == EINVAL);
	ends(asked);
	ends(id);
	ends(listener);
}

static void datagrams(struct rdma_event_channel *servers, struct rdma_event_channel *channel)
{
	struct rdma_cm_id *listener = listens(servers, RDMA_PS_UDP), *id = resolves(channel, RDMA_PS_UDP), *asked;
	struct rdma_cm_event *event;
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){0}));
	event = heard(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(!rdma_ack_cm_event(event) && !rdma_reject(asked, "no", 2));
	event = heard(channel, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->status == 2 && event->param.ud.private_data_len == 136);
	CHECK(*(const char *)event->param.ud.private_data == 'n' && !rdma_ack_cm_event(event));
	ends(asked);
	ends(id);
	ends(listener);
	id = resolves(channel, RDMA_PS_UDP);
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){0}));
	event = heard(channel, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->status == 1 && !rdma_ack_cm_event(event));
	ends(id);
}

/* The events of a request go with the request. */
static void requests_that_go_to_another_channel(struct rdma_event_channel *servers, struct rdma_event_channel *channel)
{
	struct rdma_cm_id *listener = listens(servers, RDMA_PS_TCP), *id = resolves(channel, RDMA_PS_TCP), *asked;
	struct rdma_event_channel *other = rdma_create_event_channel();
	struct rdma_cm_event *event;
	CHECK(other && !rdma_connect(id, &(struct rdma_conn_param){.retry_count = 7}));
	/* Until it has come, and then gone. */
	usleep(200000);
	ends(id);
	usleep(200000);
	CHECK(!rdma_migrate_id(listener, other));
	event = heard(other, RDMA_CM_EVENT_CONNECT_REQUEST);
	asked = event->id;
	CHECK(!rdma_ack_cm_event(event));
	event = heard(other, RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == asked && !rdma_ack_cm_event(event));
	ends(asked);
	ends(listener);
	rdma_destroy_event_channel(other);
}

static void *takes(void *listener)
{
	struct rdma_cm_id *id;
	CHECK(rdma_get_request(listener, &id) == -1 && errno == EMFILE);
	return NULL;
}

/* No descriptor is left for the requester. */
static void requests_that_cannot_be_taken(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *listener = listens(NULL, RDMA_PS_TCP), *id = resolves(channel, RDMA_PS_TCP);
	struct rlimit before, none;
	pthread_t thread;
	CHECK(!getrlimit(RLIMIT_NOFILE, &before));
	none = before;
	none.rlim_cur = 3;
	CHECK(!pthread_create(&thread, NULL, takes, listener) && !setrlimit(RLIMIT_NOFILE, &none));
	CHECK(!rdma_connect(id, &(struct rdma_conn_param){.retry_count = 7}) && !pthread_join(thread, NULL));
	CHECK(!setrlimit(RLIMIT_NOFILE, &before));
	rdma_ack_cm_event(heard(channel, RDMA_CM_EVENT_REJECTED));
	ends(id);
	ends(listener);
}

int main(void)
{
	struct rdma_event_channel *servers = rdma_create_event_channel(), *channel = rdma_create_event_channel();
	address.sin_port = htons(PORT);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	alarm(30);
	CHECK(servers && channel);
	connections(servers, channel);
	datagrams(servers, channel);
	requests_that_go_to_another_channel(servers, channel);
	requests_that_cannot_be_taken(channel);
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(channel);
	return 0;
}
