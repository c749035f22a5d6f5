/* A handler of a signal forks amid a call of the library, whose lock the thread has then. */
#include <rdma/rsocket.h>
#include <sys/socket.h>

#include "check.h"
#include "../../../libibverbs/tests/c/fork_often.h"

int main(void)
{
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char byte;
	CHECK(fd >= 0);
	begin_to_fork();
	while (forks < FORKS)
		CHECK(rrecv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == ENOTCONN);
	end_forking();
	CHECK(!rclose(fd));
	return 0;
}
