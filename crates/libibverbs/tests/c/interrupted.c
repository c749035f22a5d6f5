/* A handler of a signal forks amid a call of the library, whose lock the thread has then. */
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

#define FORKS 200

static volatile int forks;

static void fork_again(int signal)
{
	int saved = errno, status;
	pid_t child = fork();
	(void)signal;
	if (child == 0)
		_exit(0);
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	forks++;
	errno = saved;
}

/* Far more than it takes; who hangs is ended. */
static void begin_to_fork(void)
{
	struct sigaction action = {.sa_handler = fork_again, .sa_flags = SA_RESTART};
	struct itimerval often = {{0, 3000}, {0, 3000}};
	CHECK(!sigaction(SIGVTALRM, &action, NULL));
	CHECK(!setitimer(ITIMER_VIRTUAL, &often, NULL));
	alarm(60);
}

static void end_forking(void)
{
	CHECK(!setitimer(ITIMER_VIRTUAL, &(struct itimerval){0}, NULL));
}

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
	begin_to_fork();
	while (forks < FORKS)
		CHECK(ibv_poll_cq(cq, 1, &completion) == 0);
	end_forking();
	CHECK(!ibv_destroy_cq(cq) && !ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}
