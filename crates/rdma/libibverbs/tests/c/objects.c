/* Objects beside the usual ones: regions that change, null regions, device memory, domains of domains, clocks. */
#include "pair.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>

static struct pair pair;

static enum ibv_wc_status write_from(struct ibv_sge sge, struct ibv_mr *mr, uint64_t to)
{
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {to, mr->rkey}}, *bad;
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	return completion(pair.send_cq).status;
}

static void changed_region(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	struct ibv_mr *mr = ibv_reg_mr(pd, pair.memory + 1024, 64, ACCESS);
	CHECK(pd && mr);
	uint32_t key = mr->rkey;
	errno = 0;
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)0x1000, 64, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(errno == EFAULT && mr->addr == pair.memory + 1024);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_TRANSLATION, pair.pd, pair.memory + 2048, 128, 0));
	CHECK(mr->addr == pair.memory + 2048 && mr->length == 128 && mr->pd == pair.pd && mr->rkey == key);
	CHECK(!ibv_dealloc_pd(pd));
	strcpy(pair.memory, "elsewhere");
	CHECK(write_from(part(&pair, 0, 10), mr, (uintptr_t)pair.memory + 2048 + 100) == IBV_WC_SUCCESS);
	CHECK(!strcmp(pair.memory + 2148, "elsewhere"));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ACCESS | IBV_ACCESS_ZERO_BASED));
	CHECK(write_from(part(&pair, 0, 10), mr, 0) == IBV_WC_SUCCESS);
	CHECK(!ibv_dereg_mr(mr));
}

static void null_region(void)
{
	struct ibv_mr *mr = ibv_alloc_null_mr(pair.pd);
	CHECK(mr);
	memset(pair.memory + 3000, 'x', 16);
	struct ibv_sge zeroes = {.addr = 0, .length = 16, .lkey = mr->lkey};
	CHECK(write_from(zeroes, pair.mr, (uintptr_t)pair.memory + 3000) == IBV_WC_SUCCESS);
	char none[16] = "";
	CHECK(!memcmp(pair.memory + 3000, none, 16));
	CHECK(!ibv_dereg_mr(mr));
}

static void device_memory(void)
{
	struct ibv_device_attr_ex limits;
	CHECK(!ibv_query_device_ex(pair.context, NULL, &limits) && limits.max_dm_size >= 4096);
	struct ibv_alloc_dm_attr attr = {.length = 4096};
	struct ibv_dm *dm = ibv_alloc_dm(pair.context, &attr);
	char text[20] = "";
	CHECK(dm && !ibv_memcpy_to_dm(dm, 100, "device!", 8));
	CHECK(ibv_memcpy_to_dm(dm, 4092, "device!", 8) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 102, "device!", 8) == EINVAL && ibv_memcpy_to_dm(dm, 100, "device", 7) == EINVAL);
	CHECK(!ibv_memcpy_from_dm(text, dm, 100, 8) && !strcmp(text, "device!"));
	CHECK(ibv_memcpy_from_dm(text, dm, 101, 4) == EINVAL && ibv_memcpy_from_dm(text, dm, 100, 3) == EINVAL);
	CHECK(!ibv_reg_dm_mr(pair.pd, dm, 0, 4096, ACCESS) && errno == EINVAL);
	struct ibv_mr *mr = ibv_reg_dm_mr(pair.pd, dm, 64, 4032, ACCESS | IBV_ACCESS_ZERO_BASED);
	CHECK(mr);
	strcpy(pair.memory, "written");
	CHECK(write_from(part(&pair, 0, 8), mr, 8) == IBV_WC_SUCCESS);
	CHECK(!ibv_memcpy_from_dm(text, dm, 72, 8) && !strcmp(text, "written"));
	CHECK(ibv_free_dm(dm) == EBUSY && !ibv_dereg_mr(mr) && !ibv_free_dm(dm));
	attr = (struct ibv_alloc_dm_attr){.length = 101, .log_align_req = 6};
	dm = ibv_alloc_dm(pair.context, &attr);
	CHECK(dm && !ibv_memcpy_to_dm(dm, 92, "device!", 8));
	CHECK(ibv_memcpy_to_dm(dm, 96, "device!", 8) == EINVAL);
	CHECK(!ibv_reg_dm_mr(pair.pd, dm, 0, 102, ACCESS | IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(!ibv_free_dm(dm));
	attr.length = 1 << 30;
	CHECK(!ibv_alloc_dm(pair.context, &attr) && errno == ENOMEM);
	/* All objects are available, but no more; a released one is available again. */
	attr.length = limits.max_dm_size;
	for (int i = 0; i < 2; i++) {
		CHECK((dm = ibv_alloc_dm(pair.context, &attr)));
		CHECK(!ibv_alloc_dm(pair.context, &(struct ibv_alloc_dm_attr){.length = 1}) && errno == ENOMEM);
		CHECK(!ibv_free_dm(dm));
	}
}

static void domains(void)
{
	struct ibv_td_init_attr none = {};
	struct ibv_td *td = ibv_alloc_td(pair.context, &none);
	struct ibv_pd *pd = ibv_alloc_pd(pair.context);
	struct ibv_parent_domain_init_attr attr = {.pd = pd, .td = td};
	struct ibv_pd *parent = ibv_alloc_parent_domain(pair.context, &attr);
	CHECK(td && pd && parent && parent != pd && parent->context == pair.context);
	attr.pd = parent;
	CHECK(!ibv_alloc_parent_domain(pair.context, &attr) && errno == EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(parent, pair.memory, 64, ACCESS);
	CHECK(mr && mr->pd == parent);
	CHECK(ibv_dealloc_pd(parent) == EBUSY && ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_td(td) == EBUSY);
	CHECK(!ibv_dereg_mr(mr) && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dealloc_pd(parent) && !ibv_dealloc_pd(pd) && !ibv_dealloc_td(td));
}

/* A region is refused if the program may not use all of it. */
static void rights(void)
{
	size_t page = 4096;
	char *at = mmap(NULL, 5 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED && !mprotect(at + 2 * page, page, PROT_READ));
	CHECK(!ibv_reg_mr(pair.pd, at, 5 * page, ACCESS) && errno == EFAULT);
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, at, 5 * page, IBV_ACCESS_REMOTE_READ);
	CHECK(mr && !ibv_dereg_mr(mr));
	CHECK(!mprotect(at + 2 * page, page, PROT_NONE));
	CHECK(!ibv_reg_mr(pair.pd, at, 5 * page, IBV_ACCESS_REMOTE_READ) && errno == EFAULT);
	mr = ibv_reg_mr(pair.pd, at + 3 * page, 2 * page, ACCESS);
	CHECK(mr && !ibv_dereg_mr(mr) && !munmap(at, 5 * page));
}

static void advice(void)
{
	struct ibv_sge good = part(&pair, 0, 100), bad = {.addr = 0x1000, .length = 100, .lkey = pair.mr->lkey};
	CHECK(!ibv_advise_mr(pair.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &good, 1));
	CHECK(ibv_advise_mr(pair.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &bad, 1) == EFAULT);
	CHECK(ibv_advise_mr(pair.pd, 99, 0, &good, 1) == EOPNOTSUPP);
}

static void clocks(void)
{
	struct ibv_device_attr_ex attr;
	CHECK(!ibv_query_device_ex(pair.context, NULL, &attr));
	CHECK(attr.completion_timestamp_mask == UINT64_MAX && attr.hca_core_clock == 1000000);
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	CHECK(!ibv_query_rt_values_ex(pair.context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	CHECK(values.raw_clock.tv_nsec / 1000000000 - now.tv_sec < 2);
	CHECK(ibv_modify_cq(pair.send_cq, &(struct ibv_modify_cq_attr){.attr_mask = IBV_CQ_ATTR_MODERATE}) == EOPNOTSUPP);
	CHECK(attr.cq_mod_caps.max_cq_count == 0);
}

static void honest_answers(void)
{
	struct ibv_ece ece = {.comp_mask = 7};
	CHECK(!ibv_query_ece(pair.qp[0], &ece) && !ece.vendor_id && !ece.options && !ece.comp_mask);
	ece.options = 5;
	CHECK(!ibv_set_ece(pair.qp[0], &ece) && !ece.options);
	ece.comp_mask = 1;
	CHECK(ibv_set_ece(pair.qp[0], &ece) == EINVAL);
	CHECK(!ibv_import_device(0) && errno == EOPNOTSUPP);
	CHECK(!ibv_import_pd(pair.context, 0) && !ibv_import_mr(pair.pd, 0) && !ibv_import_dm(pair.context, 0));
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED && !ibv_fork_init());
	struct ibv_gid_entry entry, table[4];
	union ibv_gid gid;
	CHECK(!ibv_query_gid(pair.context, 1, 0, &gid) && !ibv_query_gid_ex(pair.context, 1, 0, &entry, 0));
	CHECK(!memcmp(&gid, &entry.gid, 16) && entry.gid_type == IBV_GID_TYPE_IB && entry.port_num == 1);
	CHECK(ibv_query_gid_table(pair.context, table, 4, 0) == 1 && !memcmp(&gid, &table[0].gid, 16));
	CHECK(ibv_query_gid_ex(pair.context, 1, 1, &entry, 0) == EINVAL);
}

static void contexts_are_not_mixed(void)
{
	struct ibv_context *one = open_first(), *other = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(one);
	struct ibv_cq *cq = ibv_create_cq(one, 4, NULL, channel, 0);
	struct ibv_pd *pd = ibv_alloc_pd(other);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
	CHECK(channel && cq && pd);
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	CHECK(!ibv_create_cq(other, 4, NULL, channel, 0) && errno == EINVAL);
	struct ibv_parent_domain_init_attr parent = {.pd = pd};
	CHECK(!ibv_alloc_parent_domain(one, &parent) && errno == EINVAL);
	struct ibv_srq_init_attr_ex shared = {.attr = {1, 1, 0}, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq};
	struct ibv_xrcd_init_attr domain = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	shared.xrcd = ibv_open_xrcd(other, &domain);
	CHECK(shared.xrcd && !ibv_create_srq_ex(other, &shared) && errno == EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(pair.pd, pair.memory, 4096, ACCESS);
	CHECK(mr && ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == EINVAL);
	CHECK(mr->pd == pair.pd && !ibv_dereg_mr(mr) && !ibv_close_xrcd(shared.xrcd));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(one) && !ibv_close_device(other));
}

int main(void)
{
	make_pair(&pair, 0, 0);
	changed_region();
	null_region();
	device_memory();
	domains();
	rights();
	advice();
	clocks();
	honest_answers();
	contexts_are_not_mixed();
	destroy_pair(&pair);
	return 0;
}
