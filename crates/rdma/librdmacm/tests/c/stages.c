/* Calls that an identifier's state forbids are refused, and harm nothing; a failed lookup may be repeated. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/socket.h>

#include "check.h"

#define PORT 7183
#define REFUSED(call) CHECK((call) == -1 && errno == EINVAL)

static struct sockaddr_in at_port(int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int resolves(struct rdma_cm_id *id)
{
	struct sockaddr_in to = at_port(PORT);
	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000);
}

static int binds(struct rdma_cm_id *id)
{
	struct sockaddr_in at = at_port(PORT);
	return rdma_bind_addr(id, (struct sockaddr *)&at);
}

static struct rdma_cm_id *identifier(void)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	return id;
}

static void needs_a_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	CHECK(!rdma_create_qp(id, NULL, &attr));
}

static void *accepts(void *listener)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_get_request(listener, &id));
	needs_a_queue_pair(id);
	REFUSED(rdma_listen(id, 1));
	REFUSED(resolves(id));
	CHECK(!rdma_accept(id, NULL));
	return id;
}

static void identifiers(void)
{
	struct rdma_cm_id *listener = identifier(), *id = identifier();
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	pthread_t thread;
	void *accepted;
	int mask;
	REFUSED(rdma_create_id(NULL, &(struct rdma_cm_id *){NULL}, NULL, 77));
	REFUSED(rdma_init_qp_attr(id, &attr, &mask));
	CHECK(!binds(listener) && !rdma_listen(listener, 1));
	REFUSED(rdma_listen(listener, 1));
	REFUSED(binds(listener));
	REFUSED(resolves(listener));
	CHECK(!pthread_create(&thread, NULL, accepts, listener));

	REFUSED(rdma_resolve_route(id, 2000));
	CHECK(!resolves(id));
	REFUSED(resolves(id));
	REFUSED(rdma_listen(id, 1));
	CHECK(!rdma_resolve_route(id, 2000));
	REFUSED(rdma_resolve_route(id, 2000));
	needs_a_queue_pair(id);
	CHECK(!rdma_connect(id, NULL));
	REFUSED(rdma_listen(id, 1));
	REFUSED(resolves(id));
	REFUSED(rdma_resolve_route(id, 2000));
	REFUSED(binds(id));
	CHECK(!pthread_join(thread, &accepted) && !rdma_disconnect(id));
	rdma_destroy_ep(id);
	rdma_destroy_ep(accepted);
	CHECK(!rdma_destroy_id(listener));
}

/* There is no way there. */
static void an_address_is_asked_for_again(void)
{
	struct sockaddr_in nowhere = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr("198.51.100.1")};
	struct rdma_cm_id *id = identifier();
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&nowhere, 2000) == -1);
	CHECK(!resolves(id) && !rdma_destroy_id(id));
}

static void sockets(void)
{
	struct sockaddr_in at = at_port(PORT);
	int listening = rsocket(AF_INET, SOCK_STREAM, 0), client = rsocket(AF_INET, SOCK_STREAM, 0), accepted;
	CHECK(!rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1) && !rlisten(listening, 2));
	CHECK(!rfcntl(client, F_SETFL, O_NONBLOCK) && rconnect(client, (struct sockaddr *)&at, sizeof(at)) == -1);
	CHECK(errno == EINPROGRESS);
	REFUSED(rlisten(client, 1));
	accepted = raccept(listening, NULL, NULL);
	CHECK(rpoll(&(struct pollfd){.fd = client, .events = POLLOUT}, 1, -1) == 1);
	REFUSED(rlisten(client, 1));
	REFUSED(rlisten(accepted, 1));
	CHECK(!rclose(client) && !rclose(accepted) && !rclose(listening));
}

int main(void)
{
	identifiers();
	an_address_is_asked_for_again();
	sockets();
	return 0;
}
