/* A program that has no memory left gets no new objects, and keeps those that it has. */
#include <sys/resource.h>

#include "pair.h"

#define MOST 100000
#define BIG (64 << 20)

static struct pair pair;
static void *made[MOST];
static char *big;

static void *cq(void)
{
	return ibv_create_cq(pair.context, 4096, NULL, NULL, 0);
}

static void *qp(void)
{
	struct ibv_qp_init_attr init = {.send_cq = pair.send_cq, .recv_cq = pair.recv_cq, .qp_type = IBV_QPT_RC,
					.cap = {1024, 1024, 4, 4, 0}};
	return ibv_create_qp(pair.pd, &init);
}

static void *srq(void)
{
	struct ibv_srq_init_attr init = {.attr = {4096, 4, 0}};
	return ibv_create_srq(pair.pd, &init);
}

static void *mr(void)
{
	return ibv_reg_mr(pair.pd, big, BIG, ACCESS);
}

static void *pd(void)
{
	return ibv_alloc_pd(pair.context);
}

static void *mw(void)
{
	return ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1);
}

static void *channel(void)
{
	return ibv_create_comp_channel(pair.context);
}

static void *context(void)
{
	return ibv_open_device(pair.context->device);
}

static const struct {
	void *(*make)(void);
	int (*destroy)(void *);
} kinds[] = {
	{cq, (int (*)(void *))ibv_destroy_cq},
	{qp, (int (*)(void *))ibv_destroy_qp},
	{srq, (int (*)(void *))ibv_destroy_srq},
	{mr, (int (*)(void *))ibv_dereg_mr},
	{pd, (int (*)(void *))ibv_dealloc_pd},
	{mw, (int (*)(void *))ibv_dealloc_mw},
	{channel, (int (*)(void *))ibv_destroy_comp_channel},
	{context, (int (*)(void *))ibv_close_device},
};

/* Addresses in use, in bytes. */
static rlim_t used(void)
{
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%lu", &pages) == 1);
	CHECK(!fclose(file));
	return pages * 4096;
}

static void write_once(void)
{
	CHECK(!post_send(&pair, 0, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, part(&pair, 0, 8), 64));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

int main(void)
{
	struct rlimit before;
	alarm(50);
	make_pair(&pair, 0, 0);
	write_once();
	big = calloc(1, BIG);
	CHECK(big && !getrlimit(RLIMIT_AS, &before));
	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++) {
		int count = 0;
		CHECK(!setrlimit(RLIMIT_AS, &(struct rlimit){used() + (2 << 20), before.rlim_max}));
		while (count < MOST && (made[count] = kinds[kind].make()))
			count++;
		/* Descriptors may be used up first. */
		CHECK(count < MOST ? errno == ENOMEM || errno == EMFILE : 1);
		CHECK(count < MOST || kind > 3);
		write_once();
		CHECK(!setrlimit(RLIMIT_AS, &before));
		while (count > 0)
			CHECK(!kinds[kind].destroy(made[--count]));
		CHECK((made[0] = kinds[kind].make()) && !kinds[kind].destroy(made[0]));
	}
	write_once();
	destroy_pair(&pair);
	return 0;
}
