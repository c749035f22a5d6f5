/* Extended reliable connections without a domain or a completion queue of the program's own: the library has them. */
#include <arpa/inet.h>
#include <dirent.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT "7181"
#define RECEIVES 4

static char message[] = "to a shared receive";

static struct rdma_addrinfo *information(int flags, int type)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_IB, .ai_qp_type = type}, *found;
	CHECK(!rdma_getaddrinfo("127.0.0.1", PORT, &hints, &found));
	return found;
}

static struct rdma_cm_id *endpoint(int flags, int type, struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo *info = information(flags, type);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_ep(&id, info, NULL, attr));
	rdma_freeaddrinfo(info);
	return id;
}

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;
	CHECK(folder);
	while (readdir(folder))
		count++;
	CHECK(!closedir(folder));
	return count;
}

static void post(struct rdma_cm_id *id, struct ibv_mr *mr, uint32_t srqn)
{
	struct ibv_sge sge = {(uintptr_t)message, sizeof(message), mr->lkey};
	struct ibv_send_wr request = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
	request.qp_type.xrc.remote_srqn = srqn;
	CHECK(!ibv_post_send(id->qp, &request, &bad));
}

static void client(void)
{
	struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = RECEIVES, .max_send_sge = 1}, .sq_sig_all = 1};
	struct rdma_cm_id *id = endpoint(0, IBV_QPT_XRC_SEND, &attr);
	struct ibv_mr *mr = rdma_reg_msgs(id, message, sizeof(message));
	struct ibv_wc completion;
	uint32_t srqn;
	CHECK(mr && !rdma_connect(id, NULL));
	memcpy(&srqn, id->event->param.conn.private_data, sizeof(srqn));
	for (int i = 0; i < RECEIVES; i++)
		post(id, mr, be32toh(srqn));
	for (int i = 0; i < RECEIVES; i++)
		CHECK(rdma_get_send_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
	CHECK(!rdma_disconnect(id) && !rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
}

/* The number of the SRQ that is made for `id`, for the network. */
static uint32_t shared_receives(struct rdma_cm_id *id, int extended)
{
	uint32_t number;
	if (extended) {
		struct ibv_srq_init_attr_ex attr = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};
		CHECK(rdma_create_srq_ex(id, &attr) == -1 && errno == EINVAL);
		attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
		attr.srq_type = IBV_SRQT_XRC;
		CHECK(!rdma_create_srq_ex(id, &attr));
		CHECK(attr.xrcd && attr.cq == id->recv_cq && attr.pd == id->pd);
	} else {
		struct ibv_srq_init_attr attr = {.attr = {.max_wr = RECEIVES, .max_sge = 1}};
		CHECK(!rdma_create_srq(id, NULL, &attr));
	}
	CHECK(id->srq && id->recv_cq && id->recv_cq_channel && !id->send_cq);
	CHECK(!ibv_get_srq_num(id->srq, &number));
	return htobe32(number);
}

static void serve(struct rdma_cm_id *listening, int extended, pid_t peer)
{
	char memory[RECEIVES * sizeof(message)] = "";
	struct rdma_conn_param param = {.private_data_len = sizeof(uint32_t)};
	struct ibv_wc completion;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	uint32_t srqn;
	int status;
	CHECK(!rdma_get_request(listening, &id) && id->qp && id->qp->qp_type == IBV_QPT_XRC_RECV);
	srqn = shared_receives(id, extended);
	param.private_data = &srqn;
	mr = rdma_reg_msgs(id, memory, sizeof(memory));
	CHECK(mr);
	for (int i = 0; i < RECEIVES; i++)
		CHECK(!rdma_post_recv(id, NULL, memory + i * sizeof(message), sizeof(message), mr));
	CHECK(!rdma_accept(id, &param));
	/* All have come: the queue has room for as many as there are receives. */
	CHECK(waitpid(peer, &status, 0) == peer && status == 0);
	for (int i = 0; i < RECEIVES; i++) {
		CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
		CHECK(!memcmp(memory + i * sizeof(message), message, sizeof(message)));
	}
	CHECK(!rdma_disconnect(id) && !rdma_dereg_mr(mr));
	/* In either order. */
	if (extended)
		rdma_destroy_srq(id);
	rdma_destroy_ep(id);
}

int main(void)
{
	struct ibv_qp_init_attr attr = {.cap = {.max_recv_wr = 1, .max_recv_sge = 1}};
	struct rdma_cm_id *listening = endpoint(RAI_PASSIVE, IBV_QPT_XRC_RECV, &attr);
	int before = descriptors(), attempts = 0;
	CHECK(!rdma_listen(listening, 0));
	for (int extended = 0; extended < 2; extended++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			client();
			_exit(0);
		}
		serve(listening, extended, child);
	}
	/* Completion queues, and their channels, went with their users. The link to a process goes a little after it. */
	while (descriptors() > before) {
		CHECK(attempts++ < 500);
		usleep(10000);
	}
	rdma_destroy_ep(listening);
	return 0;
}
