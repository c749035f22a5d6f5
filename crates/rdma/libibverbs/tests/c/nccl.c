/* Verbs as NCCL comes by them: nothing is linked; the library is opened by name and each function asked for with its
 * version. Then the calls of NCCL's network on a device: RC queue pairs that it makes ready, a flushing READ and a
 * WRITE with a word, completions polled. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);         \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

/* Return type, name, parameters and version of each function. */
#define FUNCTIONS(each)                                                                         \
	each(int, ibv_fork_init, (void), "1.1")                                                 \
	each(struct ibv_device **, ibv_get_device_list, (int *), "1.1")                         \
	each(void, ibv_free_device_list, (struct ibv_device **), "1.1")                         \
	each(const char *, ibv_get_device_name, (struct ibv_device *), "1.1")                   \
	each(struct ibv_context *, ibv_open_device, (struct ibv_device *), "1.1")               \
	each(int, ibv_close_device, (struct ibv_context *), "1.1")                              \
	each(int, ibv_get_async_event, (struct ibv_context *, struct ibv_async_event *), "1.1") \
	each(void, ibv_ack_async_event, (struct ibv_async_event *), "1.1")                      \
	each(int, ibv_query_device, (struct ibv_context *, struct ibv_device_attr *), "1.1")    \
	each(int, ibv_query_port, (struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *), "1.1") \
	each(int, ibv_query_gid, (struct ibv_context *, uint8_t, int, union ibv_gid *), "1.1")  \
	each(int, ibv_query_qp, (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *), "1.1") \
	each(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *), "1.1")                      \
	each(int, ibv_dealloc_pd, (struct ibv_pd *), "1.1")                                     \
	each(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *, void *, size_t, int), "1.1")        \
	each(struct ibv_mr *, ibv_reg_mr_iova2, (struct ibv_pd *, void *, size_t, uint64_t, unsigned), "1.8") \
	each(struct ibv_mr *, ibv_reg_dmabuf_mr, (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int), "1.12") \
	each(int, ibv_dereg_mr, (struct ibv_mr *), "1.1")                                       \
	each(struct ibv_cq *, ibv_create_cq,                                                    \
	     (struct ibv_context *, int, void *, struct ibv_comp_channel *, int), "1.1")        \
	each(int, ibv_destroy_cq, (struct ibv_cq *), "1.1")                                     \
	each(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *, struct ibv_qp_init_attr *), "1.1") \
	each(int, ibv_modify_qp, (struct ibv_qp *, struct ibv_qp_attr *, int), "1.1")           \
	each(int, ibv_destroy_qp, (struct ibv_qp *), "1.1")                                     \
	each(const char *, ibv_event_type_str, (enum ibv_event_type), "1.1")                    \
	each(int, ibv_query_ece, (struct ibv_qp *, struct ibv_ece *), "1.10")                   \
	each(int, ibv_set_ece, (struct ibv_qp *, struct ibv_ece *), "1.10")

#define DECLARE(type, name, parameters, version) static type(*nccl_##name) parameters;
FUNCTIONS(DECLARE)

static void load(void)
{
	void *library = dlopen("libibverbs.so", RTLD_NOW);
	if (!library)
		library = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(library);
#define LOAD(type, name, parameters, version)                                                   \
	nccl_##name = (type(*) parameters)dlvsym(library, #name, "IBVERBS_" version);           \
	if (!nccl_##name) {                                                                     \
		fprintf(stderr, "%s\n", dlerror());                                             \
		exit(1);                                                                        \
	}
	FUNCTIONS(LOAD)
	CHECK(!dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.1"));
}

static void connect_qp(struct ibv_qp *qp, uint32_t remote, uint16_t lid)
{
	struct ibv_ece none;
	CHECK(!nccl_ibv_query_ece(qp, &none) && !none.options);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
				   .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	CHECK(!nccl_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = remote,
				    .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
				    .ah_attr = {.dlid = lid, .port_num = 1}};
	CHECK(!nccl_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7,
				    .max_rd_atomic = 1};
	CHECK(!nccl_ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	CHECK(!qp->context->ops.post_send(qp, wr, &bad));
}

/* Waits for a completion of each of `opcodes`, in their order. */
static void expect(struct ibv_cq *cq, const enum ibv_wc_opcode *opcodes, int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_wc wc;
		int found;
		do {
			found = cq->context->ops.poll_cq(cq, 1, &wc);
			CHECK(found >= 0);
		} while (!found);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcodes[i]);
	}
}

int main(void)
{
	load();
	CHECK(!nccl_ibv_fork_init());
	int count;
	struct ibv_device **list = nccl_ibv_get_device_list(&count);
	CHECK(list && count == 1 && nccl_ibv_get_device_name(list[0]));
	struct ibv_context *context = nccl_ibv_open_device(list[0]);
	CHECK(context);
	nccl_ibv_free_device_list(list);
	struct ibv_device_attr device;
	struct ibv_port_attr port = {0};
	union ibv_gid gid;
	CHECK(!nccl_ibv_query_device(context, &device) && device.phys_port_cnt == 1);
	CHECK(!nccl_ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)&port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_INFINIBAND);
	CHECK(!nccl_ibv_query_gid(context, 1, 0, &gid));
	struct ibv_pd *pd = nccl_ibv_alloc_pd(context);
	CHECK(pd);
	/* NCCL learns so that the device takes no dma-buf. */
	CHECK(!nccl_ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));

	static char memory[2][4096];
	struct ibv_mr *mr = nccl_ibv_reg_mr_iova2(pd, memory, sizeof(memory), (uintptr_t)memory,
						  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
							  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr);
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	for (int i = 0; i < 2; i++) {
		cq[i] = nccl_ibv_create_cq(context, 64, NULL, NULL, 0);
		CHECK(cq[i]);
		struct ibv_qp_init_attr init = {.send_cq = cq[i], .recv_cq = cq[i], .qp_type = IBV_QPT_RC,
						.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1,
							.max_recv_sge = 1}};
		qp[i] = nccl_ibv_create_qp(pd, &init);
		CHECK(qp[i]);
	}
	for (int i = 0; i < 2; i++)
		connect_qp(qp[i], qp[1 - i]->qp_num, port.lid);

	struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
	CHECK(!qp[1]->context->ops.post_recv(qp[1], &receive, &bad));
	memset(memory[0], 7, sizeof(memory[0]));
	struct ibv_sge from = {(uintptr_t)memory[0], sizeof(memory[0]), mr->lkey};
	struct ibv_send_wr last = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED};
	struct ibv_send_wr data = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &from, .num_sge = 1, .next = &last,
				   .wr.rdma = {(uintptr_t)memory[1], mr->rkey}};
	post(qp[0], &data);
	expect(cq[1], (enum ibv_wc_opcode[]){IBV_WC_RECV_RDMA_WITH_IMM}, 1);
	expect(cq[0], (enum ibv_wc_opcode[]){IBV_WC_RDMA_WRITE}, 1);
	CHECK(!memcmp(memory[0], memory[1], sizeof(memory[0])));

	/* NCCL reads a byte to make earlier data visible. */
	from.length = 1;
	struct ibv_send_wr flush = {.opcode = IBV_WR_RDMA_READ, .sg_list = &from, .num_sge = 1,
				    .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {(uintptr_t)memory[1], mr->rkey}};
	post(qp[0], &flush);
	expect(cq[0], (enum ibv_wc_opcode[]){IBV_WC_RDMA_READ}, 1);

	for (int i = 0; i < 2; i++)
		CHECK(!nccl_ibv_destroy_qp(qp[i]) && !nccl_ibv_destroy_cq(cq[i]));
	CHECK(!nccl_ibv_dereg_mr(mr) && !nccl_ibv_dealloc_pd(pd) && !nccl_ibv_close_device(context));
	CHECK(nccl_ibv_event_type_str(IBV_EVENT_QP_FATAL));
	return 0;
}
