/* A process that could not start, for want of descriptors or of a thread, has lost nothing by it, and starts later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"
#include "descriptors.h"

/* More than it takes to begin. */
#define ENOUGH 30
#define ATTEMPTS 10

static bool has_threads = true;

/* In the place of the C library's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	return has_threads ? create(thread, attr, start, argument) : EAGAIN;
}

static void is_attached(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	ibv_free_device_list(list);
}

/* Tries with so many descriptors that are free; whether it succeeds. */
static bool begins(struct rdma_event_channel *channel, int count)
{
	struct rlimit before, few;
	struct rdma_cm_id *id;
	int had = descriptors(), fd = dup(0), failed;
	CHECK(fd >= 0 && !close(fd) && !getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	few.rlim_cur = fd + count;
	for (int i = 0; i < ATTEMPTS; i++) {
		CHECK(!setrlimit(RLIMIT_NOFILE, &few));
		failed = rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
		CHECK(!setrlimit(RLIMIT_NOFILE, &before));
		if (!failed) {
			CHECK(!rdma_destroy_id(id));
			return true;
		}
		CHECK(has_threads || errno == EAGAIN);
	}
	CHECK(descriptors() == had);
	return false;
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	int count = 0, fd;
	alarm(50);
	is_attached();
	has_threads = false;
	CHECK(channel && !begins(channel, ENOUGH));
	has_threads = true;
	while (!begins(channel, count))
		count++;
	CHECK(count >= 4);
	rdma_destroy_event_channel(channel);
	fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rclose(fd));
	return 0;
}
