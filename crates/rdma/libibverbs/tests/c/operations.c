/* Every operation of RC, posted the classic way; lists and the request that is refused. */
#include "pair.h"
#include <sys/mman.h>

static struct pair pair;

static void done(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = completion(pair.send_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

static void messages(void)
{
	strcpy(pair.memory, "hello");
	post_recv(&pair, 1, 7, part(&pair, 1024, 64));
	CHECK(!post_send(&pair, 0, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED | IBV_SEND_INLINE,
			 (struct ibv_sge){(uintptr_t)pair.memory, 6, 0}, 0));
	struct ibv_wc wc = completion(pair.recv_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.opcode == IBV_WC_RECV && wc.byte_len == 6);
	CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == 0x12345678 && wc.qp_num == pair.qp[1]->qp_num);
	CHECK(!strcmp(pair.memory + 1024, "hello"));
	done(IBV_WC_SEND);
}

static void one_sided(void)
{
	strcpy(pair.memory, "written");
	CHECK(!post_send(&pair, 0, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, part(&pair, 0, 8), 2048));
	done(IBV_WC_RDMA_WRITE);
	CHECK(!strcmp(pair.memory + 2048, "written"));
	CHECK(!post_send(&pair, 1, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, part(&pair, 3072, 8), 2048));
	done(IBV_WC_RDMA_READ);
	CHECK(!strcmp(pair.memory + 3072, "written"));
}

static void atomics(void)
{
	uint64_t *target = (uint64_t *)(pair.memory + 4096), *before = (uint64_t *)(pair.memory + 4104);
	struct ibv_sge sge = part(&pair, 4104, 8);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
				 .send_flags = IBV_SEND_SIGNALED,
				 .wr.atomic = {(uintptr_t)target, 5, 0, pair.mr->rkey}}, *bad;
	*target = 37;
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	done(IBV_WC_FETCH_ADD);
	CHECK(*before == 37 && *target == 42);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 99;
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	done(IBV_WC_COMP_SWAP);
	CHECK(*before == 42 && *target == 99);
}

static void lists(void)
{
	struct ibv_sge sge = part(&pair, 0, 8);
	struct ibv_send_wr wr[3], *bad = NULL;
	for (int i = 0; i < 3; i++)
		wr[i] = (struct ibv_send_wr){.wr_id = i, .next = i < 2 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
					     .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
					     .wr.rdma = {(uintptr_t)pair.memory + 5000, pair.mr->rkey}};
	wr[1].num_sge = 1000;
	CHECK(ibv_post_send(pair.qp[0], wr, &bad) == EINVAL && bad == &wr[1]);
	CHECK(completion(pair.send_cq).wr_id == 0);
	wr[1].num_sge = 1;
	wr[1].send_flags = 0;
	CHECK(!ibv_post_send(pair.qp[0], wr, &bad));
	CHECK(completion(pair.send_cq).wr_id == 0 && completion(pair.send_cq).wr_id == 2);
}

static void queries(void)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(pair.qp[0], &attr, IBV_QP_STATE | IBV_QP_CAP, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cap.max_send_sge >= 4 && attr.dest_qp_num == pair.qp[1]->qp_num);
	CHECK(init.send_cq == pair.send_cq && init.recv_cq == pair.recv_cq && init.cap.max_send_wr >= 16);
	CHECK(ibv_dealloc_pd(pair.pd) == EBUSY && ibv_destroy_cq(pair.send_cq) == EBUSY);
}

static void protection(void)
{
	struct ibv_sge sge = part(&pair, 0, 8);
	struct ibv_send_wr wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)pair.memory, pair.mr->rkey + 12345}}, *bad;
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	struct ibv_wc wc = completion(pair.send_cq);
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 5);
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	CHECK(completion(pair.send_cq).status == IBV_WC_WR_FLUSH_ERR);
}

/* Whether `length` bytes at `where` are refused, with `expected`. */
static int refused(const void *where, size_t length, int access, int expected)
{
	errno = 0;
	return !ibv_reg_mr(pair.pd, (void *)where, length, access) && errno == expected;
}

static void registration(void)
{
	char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED && !munmap(pages + 4096, 4096) && !mprotect(pages + 8192, 4096, PROT_READ));
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	CHECK(refused((void *)0x1000, 4096, all, EFAULT));
	CHECK(refused(pages, 3 * 4096, all, EFAULT));
	CHECK(refused(pages, 1ull << 40, 0, EFAULT));
	CHECK(refused(pages + 8192, 100, all, EFAULT));
	CHECK(refused(pages, 0, all, EINVAL));
	CHECK(refused(pages, -1, all, EINVAL));
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, pages + 8192, 100, 0);
	CHECK(mr && !ibv_dereg_mr(mr));
}

int main(int argc, char **argv)
{
	make_pair(&pair, 0, argc > 1 && !strcmp(argv[1], "srq"));
	messages();
	one_sided();
	atomics();
	lists();
	queries();
	registration();
	protection();
	struct ibv_async_event event;
	CHECK(!fcntl(pair.context->async_fd, F_SETFL, O_NONBLOCK));
	while (!ibv_get_async_event(pair.context, &event))
		ibv_ack_async_event(&event);
	CHECK(errno == EAGAIN);
	destroy_pair(&pair);
	return 0;
}
