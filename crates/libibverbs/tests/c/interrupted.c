/* A handler of a signal forks amid a call of the library, whose lock the thread has then. */
#include "pair.h"
#include "fork_often.h"

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_cq *cq;
	struct ibv_wc completion;
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(cq);
	children_return = 1;
	begin_to_fork();
	while (forks < FORKS) {
		int got = ibv_poll_cq(cq, 1, &completion);
		if (is_child) {
			/* The device is its parent's. */
			CHECK(ibv_poll_cq(cq, 1, &completion) < 0);
			_exit(0);
		}
		CHECK(got == 0);
	}
	end_forking();
	CHECK(!ibv_destroy_cq(cq) && !ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}
