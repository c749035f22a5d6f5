/* A server that accepts and disconnects at once was there: its client sees the connection, and then its end. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include "check.h"

#define PORT 7188

static void needs_a_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	CHECK(!rdma_create_qp(id, NULL, &attr));
}

static struct rdma_cm_id *heard(struct rdma_event_channel *from, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	CHECK(!rdma_get_cm_event(from, &event));
	CHECK(event->event == expected && event->status == 0);
	id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

int main(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_event_channel *servers = rdma_create_event_channel(), *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener, *client, *server;
	alarm(20);
	CHECK(servers && channel && !rdma_create_id(servers, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&at) && !rdma_listen(listener, 1));
	CHECK(!rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&at, 2000));
	heard(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(client, 2000));
	heard(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	needs_a_queue_pair(client);
	CHECK(!rdma_connect(client, &(struct rdma_conn_param){.retry_count = 7}));
	server = heard(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	needs_a_queue_pair(server);
	CHECK(!rdma_accept(server, NULL) && !rdma_disconnect(server));
	/* Until both have arrived, and its client is late. */
	usleep(500000);
	heard(channel, RDMA_CM_EVENT_ESTABLISHED);
	heard(channel, RDMA_CM_EVENT_DISCONNECTED);
	heard(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	rdma_destroy_qp(client);
	rdma_destroy_qp(server);
	CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(servers);
	return 0;
}
