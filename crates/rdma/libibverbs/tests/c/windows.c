/* Memory windows of both types, posted the classic way and through ibv_wr_*. */
#include "pair.h"

static struct pair pair;
static struct ibv_mr *region;
static char *shown;

static void done(struct ibv_cq *cq, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

static struct ibv_mw_bind_info info(unsigned access)
{
	/* Many programs name local rights as well, which a window does not have. */
	access |= IBV_ACCESS_LOCAL_WRITE;
	return (struct ibv_mw_bind_info){.mr = region, .addr = (uintptr_t)shown, .length = 64, .mw_access_flags = access};
}

static void write_to(uint64_t address, uint32_t rkey, const char *text, enum ibv_wc_status status)
{
	struct ibv_sge sge = part(&pair, 0, 16);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {address, rkey}}, *bad;
	strcpy(pair.memory, text);
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	CHECK(completion(pair.send_cq).status == status);
	CHECK(status != IBV_WC_SUCCESS || !strcmp(shown, text));
}

static void type_one(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->type == IBV_MW_TYPE_1 && mw->pd == pair.pd);
	uint32_t first = mw->rkey;
	struct ibv_mw_bind bind = {.wr_id = 3, .send_flags = IBV_SEND_SIGNALED, .bind_info = info(IBV_ACCESS_REMOTE_WRITE)};
	CHECK(!ibv_bind_mw(pair.qp[1], mw, &bind) && mw->rkey != first);
	done(pair.send_cq, IBV_WC_BIND_MW);
	write_to((uintptr_t)shown, mw->rkey, "type one", IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(region) == EBUSY);
	bind.bind_info = (struct ibv_mw_bind_info){};
	CHECK(!ibv_bind_mw(pair.qp[1], mw, &bind));
	done(pair.send_cq, IBV_WC_BIND_MW);
	CHECK(!ibv_dealloc_mw(mw));
}

static void invalidate_by_peer(uint32_t rkey)
{
	struct ibv_sge sge = part(&pair, 0, 8);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV,
				 .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey}, *bad;
	post_recv(&pair, 1, 9, part(&pair, 512, 64));
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	done(pair.send_cq, IBV_WC_SEND);
	struct ibv_wc wc = completion(pair.recv_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == rkey);
}

static void type_two(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_2);
	CHECK(mw && mw->type == IBV_MW_TYPE_2);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
				 .bind_mw = {mw, rkey, info(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED)}}, *bad;
	CHECK(!ibv_post_send(pair.qp[1], &wr, &bad));
	done(pair.send_cq, IBV_WC_BIND_MW);
	write_to(0, rkey, "type two", IBV_WC_SUCCESS);
	invalidate_by_peer(rkey);

	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair.qp[1]);
	struct ibv_mw_bind_info again = info(IBV_ACCESS_REMOTE_WRITE);
	rkey = ibv_inc_rkey(rkey);
	ibv_wr_start(qp);
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(qp, mw, rkey, &again);
	CHECK(!ibv_wr_complete(qp));
	done(pair.send_cq, IBV_WC_BIND_MW);
	write_to((uintptr_t)shown, rkey, "again", IBV_WC_SUCCESS);
	ibv_wr_start(qp);
	ibv_wr_local_inv(qp, rkey);
	CHECK(!ibv_wr_complete(qp));
	done(pair.send_cq, IBV_WC_LOCAL_INV);
	write_to((uintptr_t)shown, rkey, "gone", IBV_WC_REM_ACCESS_ERR);

	wr.bind_mw.rkey = rkey + 256;
	CHECK(ibv_post_send(pair.qp[1], &wr, &bad) == EINVAL);
	CHECK(!ibv_dealloc_mw(mw));
}

static void zero_based_region(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, shown, 64, ACCESS | IBV_ACCESS_ZERO_BASED);
	CHECK(mr);
	write_to(0, mr->rkey, "from zero", IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr));
}

int main(void)
{
	make_pair(&pair, 1, 0);
	struct ibv_device_attr attr;
	CHECK(!ibv_query_device(pair.context, &attr) && attr.max_mw > 0);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	shown = pair.memory + 4096;
	region = ibv_reg_mr(pair.pd, shown, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(region);
	type_one();
	zero_based_region();
	type_two();
	CHECK(!ibv_dereg_mr(region));
	destroy_pair(&pair);
	return 0;
}
