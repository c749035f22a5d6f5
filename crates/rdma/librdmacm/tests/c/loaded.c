/* A process without descriptors or memory to load libibverbs, or to start, gets an error, and succeeds later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

/* Less than a library takes, in bytes. */
#define LITTLE (1 << 16)

static struct rdma_event_channel *channel;

static bool is_loaded(void)
{
	return dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
}

/* 0, or why not. */
static int begin(void)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return errno;
	CHECK(!rdma_destroy_id(id));
	return 0;
}

/* With no more of a resource than this. */
static int begin_with(int resource, rlim_t limit)
{
	struct rlimit before, few;
	int result;
	CHECK(!getrlimit(resource, &before));
	few = before;
	few.rlim_cur = limit;
	CHECK(!setrlimit(resource, &few));
	result = begin();
	CHECK(!setrlimit(resource, &before));
	return result;
}

static rlim_t addresses(void)
{
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%lu", &pages) == 1 && !fclose(file));
	return (rlim_t)pages * sysconf(_SC_PAGESIZE);
}

static int next_descriptor(void)
{
	int fd = dup(0);
	CHECK(fd >= 0 && !close(fd));
	return fd;
}

int main(void)
{
	int more = 1, failed;
	alarm(50);
	channel = rdma_create_event_channel();
	CHECK(channel && !is_loaded());
	CHECK(begin_with(RLIMIT_NOFILE, next_descriptor()) == EMFILE && !is_loaded());
	CHECK(begin_with(RLIMIT_AS, addresses() + LITTLE) == ENOMEM && !is_loaded());
	/* Loading it takes one, and beginning more. */
	while ((failed = begin_with(RLIMIT_NOFILE, next_descriptor() + more)) == EMFILE)
		more++;
	CHECK(!failed && more > 1);
	rdma_destroy_event_channel(channel);
	return 0;
}
