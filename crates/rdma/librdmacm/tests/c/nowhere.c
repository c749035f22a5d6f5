/* An identifier that is neither bound to an address nor resolved has no device, and gets no queue pair. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>

#include "check.h"

static struct sockaddr_in address(in_addr_t ip, int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(ip)};
}

static void refused(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp_init_attr_ex extended = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	CHECK(!id->verbs);
	CHECK(rdma_create_qp(id, NULL, &attr) == -1 && errno == EINVAL);
	CHECK(rdma_create_qp_ex(id, &extended) == -1 && errno == EINVAL);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
}

int main(void)
{
	struct ibv_qp_init_attr attr = {.cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct sockaddr_in any = address(INADDR_ANY, 0), to = address(INADDR_LOOPBACK, 7183);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	refused(id);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any));
	/* Any address is none of a device. */
	refused(id);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000));
	CHECK(id->verbs && !rdma_create_qp(id, NULL, &attr) && id->qp);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	return 0;
}
