/* A program that can have no thread finds no device, and one later; nothing is left of the attempts. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>

#include "pair.h"

static int refuses = 3;

/* In the place of libc's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *argument)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	return refuses > 0 ? refuses--, EAGAIN : create(thread, attr, start, argument);
}

static int descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		count++;
	CHECK(!closedir(folder));
	return count;
}

int main(void)
{
	static struct pair pair;
	int before = descriptors(), count;
	alarm(50);
	while (refuses > 0) {
		struct ibv_device **list = ibv_get_device_list(&count);
		CHECK(list && count == 0 && !list[0]);
		ibv_free_device_list(list);
		CHECK(descriptors() == before);
	}
	make_pair(&pair, 0, 0);
	CHECK(!post_send(&pair, 0, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, part(&pair, 0, 8), 64));
	CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
	destroy_pair(&pair);
	return 0;
}
