/* Every status of a completion: provoked, or a reason why this device never gives it. */
#define _GNU_SOURCE
#include "pair.h"
#include <sys/mman.h>

static struct pair pair;

static void expect_sent(enum ibv_wc_status status)
{
	CHECK(completion(pair.send_cq).status == status);
}

static void expect_received(enum ibv_wc_status status)
{
	CHECK(completion(pair.recv_cq).status == status);
}

static void send_bytes(uint32_t length)
{
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED, part(&pair, 0, length), 0));
}

static void success(void)
{
	post_recv(&pair, 1, 1, part(&pair, 1024, 64));
	send_bytes(8);
	expect_sent(IBV_WC_SUCCESS);
	expect_received(IBV_WC_SUCCESS);
}

/* A message longer than its receive: of the receive, and as REM_INV_REQ_ERR of the SEND. */
static void too_long(void)
{
	post_recv(&pair, 1, 1, part(&pair, 1024, 8));
	send_bytes(9);
	expect_received(IBV_WC_LOC_LEN_ERR);
	expect_sent(IBV_WC_REM_INV_REQ_ERR);
}

/* A READ on a QP that may have none outstanding. */
static void not_for_this_qp(void)
{
	CHECK(!post_send(&pair, 0, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, part(&pair, 0, 8), 1024));
	expect_sent(IBV_WC_LOC_QP_OP_ERR);
}

static struct ibv_sge unregistered(void)
{
	struct ibv_sge sge = part(&pair, 0, 8);
	sge.lkey += 12345;
	return sge;
}

static void wrong_local_key(void)
{
	CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED, unregistered(), 0));
	expect_sent(IBV_WC_LOC_PROT_ERR);
}

static void flushed(void)
{
	wrong_local_key();
	send_bytes(8);
	expect_sent(IBV_WC_WR_FLUSH_ERR);
}

/* The region does not allow windows. */
static void forbidden_window(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {.send_flags = IBV_SEND_SIGNALED,
				   .bind_info = {pair.mr, (uintptr_t)pair.memory, 64, IBV_ACCESS_REMOTE_READ}};
	CHECK(mw && !ibv_bind_mw(pair.qp[0], mw, &bind));
	expect_sent(IBV_WC_MW_BIND_ERR);
	CHECK(!ibv_dealloc_mw(mw));
}

/* `length` bytes, the same page again and again. */
static char *repeated_page(size_t length)
{
	int memory = memfd_create("page", 0);
	CHECK(memory != -1 && !ftruncate(memory, 1 << 20));
	char *bytes = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(bytes != MAP_FAILED);
	for (size_t at = 0; at < length; at += 1 << 20)
		CHECK(mmap(bytes + at, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) != MAP_FAILED);
	close(memory);
	return bytes;
}

/* Sends a long WRITE with immediate data, and deregisters where it arrives once its first byte is there. Whether that was
 * in time. */
static int outrun(char *from, char *to, size_t length)
{
	struct ibv_mr *source = ibv_reg_mr(pair.pd, from, length, 0), *target = ibv_reg_mr(pair.pd, to, length, ACCESS);
	CHECK(source && target);
	struct ibv_sge sge = {(uintptr_t)from, length, source->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				 .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {(uintptr_t)to, target->rkey}}, *bad;
	struct ibv_wc wc;
	int received = 0;
	*to = 0;
	post_recv(&pair, 1, 1, part(&pair, 1024, 8));
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	while (!received && !*(volatile char *)to)
		received = ibv_poll_cq(pair.recv_cq, 1, &wc);
	CHECK(!ibv_dereg_mr(target));
	if (!received)
		wc = completion(pair.recv_cq);
	expect_sent(wc.status == IBV_WC_SUCCESS ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_dereg_mr(source));
	return wc.status == IBV_WC_LOC_ACCESS_ERR;
}

static void memory_that_goes_away(void)
{
	size_t length = 256 << 20;
	char *from = repeated_page(length), *to = repeated_page(length);
	*from = 'x';
	int in_time = 0;
	/* On a busy machine all may have arrived before this thread runs again. */
	for (int i = 0; i < 20 && !in_time; i++)
		in_time = outrun(from, to, length);
	CHECK(in_time && !munmap(from, length) && !munmap(to, length));
}

static void wrong_remote_key(void)
{
	struct ibv_sge sge = part(&pair, 0, 8);
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				 .wr.rdma = {(uintptr_t)pair.memory, pair.mr->rkey + 12345}}, *bad;
	CHECK(!ibv_post_send(pair.qp[0], &wr, &bad));
	expect_sent(IBV_WC_REM_ACCESS_ERR);
}

/* The peer's receive names memory that is not registered. */
static void broken_receive(void)
{
	post_recv(&pair, 1, 1, unregistered());
	send_bytes(8);
	expect_received(IBV_WC_LOC_PROT_ERR);
	expect_sent(IBV_WC_REM_OP_ERR);
}

static void nobody_answers(void)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	CHECK(!ibv_modify_qp(pair.qp[1], &reset, IBV_QP_STATE));
	send_bytes(8);
	expect_sent(IBV_WC_RETRY_EXC_ERR);
}

static void no_receive(void)
{
	send_bytes(8);
	expect_sent(IBV_WC_RNR_RETRY_EXC_ERR);
}

static const char RELIABLE_DATAGRAMS[] = "of reliable datagrams and their end-to-end contexts, which verbs does not have";
static const char TAG_MATCHING[] = "of tag matching, which this device does not have";

static const struct {
	enum ibv_wc_status status;
	void (*provoke)(void);
	const char *why_not;
} CASES[] = {
	{IBV_WC_SUCCESS, success},
	{IBV_WC_LOC_LEN_ERR, too_long},
	{IBV_WC_LOC_QP_OP_ERR, not_for_this_qp},
	{IBV_WC_LOC_EEC_OP_ERR, NULL, RELIABLE_DATAGRAMS},
	{IBV_WC_LOC_PROT_ERR, wrong_local_key},
	{IBV_WC_WR_FLUSH_ERR, flushed},
	{IBV_WC_MW_BIND_ERR, forbidden_window},
	{IBV_WC_BAD_RESP_ERR, NULL, "a peer whose answers make no sense loses its link; its requesters then resynchronise"},
	{IBV_WC_LOC_ACCESS_ERR, memory_that_goes_away},
	{IBV_WC_REM_INV_REQ_ERR, too_long},
	{IBV_WC_REM_ACCESS_ERR, wrong_remote_key},
	{IBV_WC_REM_OP_ERR, broken_receive},
	{IBV_WC_RETRY_EXC_ERR, nobody_answers},
	{IBV_WC_RNR_RETRY_EXC_ERR, no_receive},
	{IBV_WC_LOC_RDD_VIOL_ERR, NULL, RELIABLE_DATAGRAMS},
	{IBV_WC_REM_INV_RD_REQ_ERR, NULL, RELIABLE_DATAGRAMS},
	{IBV_WC_REM_ABORT_ERR, NULL, RELIABLE_DATAGRAMS},
	{IBV_WC_INV_EECN_ERR, NULL, RELIABLE_DATAGRAMS},
	{IBV_WC_INV_EEC_STATE_ERR, NULL, RELIABLE_DATAGRAMS},
	{IBV_WC_FATAL_ERR, NULL, "the device is the program: it ends with it, not before"},
	{IBV_WC_RESP_TIMEOUT_ERR, NULL, "of answers to management datagrams, which are the connection manager's own"},
	{IBV_WC_GENERAL_ERR, NULL, "for errors without a status of their own; there are none"},
	{IBV_WC_TM_ERR, NULL, TAG_MATCHING},
	{IBV_WC_TM_RNDV_INCOMPLETE, NULL, TAG_MATCHING},
};

int main(void)
{
	for (int i = 0; i < (int)(sizeof(CASES) / sizeof(CASES[0])); i++) {
		CHECK((int)CASES[i].status == i && strcmp(ibv_wc_status_str(i), "unknown"));
		CHECK(!CASES[i].provoke != !CASES[i].why_not);
		if (!CASES[i].provoke)
			continue;
		read_depth = CASES[i].provoke == not_for_this_qp ? 0 : 4;
		rnr_retries = CASES[i].provoke == no_receive ? 1 : 7;
		retries = CASES[i].provoke == nobody_answers ? 2 : 7;
		make_pair(&pair, 0, 0);
		CASES[i].provoke();
		struct ibv_async_event event;
		CHECK(!fcntl(pair.context->async_fd, F_SETFL, O_NONBLOCK));
		while (!ibv_get_async_event(pair.context, &event))
			ibv_ack_async_event(&event);
		destroy_pair(&pair);
	}
	return 0;
}
