/* Looks for devices where there is none, twice; with an argument, without standard error. */
#include <infiniband/verbs.h>
#include <unistd.h>

static int devices(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);

	if (!list || list[0])
		return -1;
	ibv_free_device_list(list);
	return count;
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		close(STDERR_FILENO);
	return devices() || devices();
}
