/* Libraries of rdma-core that link libibverbs find all that they ask for in ours, and ours alone is loaded; so too for a
 * program that opens it and asks for versions, as NCCL does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition, what)                                                                   \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s: %s: %s\n", what, #condition, dlerror());           \
			return 1;                                                               \
		}                                                                               \
	} while (0)

/* How many files called libibverbs.so* are mapped, other than that at `own`. */
static int others(const char *own)
{
	char line[1024];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), maps))
		found += strstr(line, "/libibverbs.so") && !strstr(line, own);
	fclose(maps);
	return found;
}

int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++)
		CHECK(dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL), argv[i]);
	const char *names[] = {"libibverbs.so.1", "libibverbs.so"};
	for (int i = 0; i < 2; i++) {
		void *library = dlopen(names[i], RTLD_NOW);
		CHECK(library, names[i]);
		CHECK(dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1"), names[i]);
		CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"), names[i]);
		CHECK(dlvsym(library, "ibv_query_ece", "IBVERBS_1.10"), names[i]);
		CHECK(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"), names[i]);
		CHECK(!dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.1"), names[i]);
	}
	CHECK(!others(argv[1]), argv[1]);
	return 0;
}
