/* Data that a process has received is acknowledged although the process ends at once. */
#include "pair.h"
#include <sys/socket.h>

#define MESSAGES 16
#define ROUNDS 25

static struct pair pair;

/* Connects the first QP to that of the process at the other end of `socket`. */
static void connect_to(int socket)
{
	uint32_t own = pair.qp[0]->qp_num, peer;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
	CHECK(!ibv_modify_qp(pair.qp[0], &attr, IBV_QP_STATE));
	CHECK(write(socket, &own, sizeof(own)) == sizeof(own) && read(socket, &peer, sizeof(peer)) == sizeof(peer));
	connect_qp(pair.qp[0], peer);
}

static void receive(int socket)
{
	make_pair(&pair, 0, 0);
	connect_to(socket);
	for (int i = 0; i < MESSAGES; i++)
		post_recv(&pair, 0, i, part(&pair, 0, 8));
	CHECK(write(socket, "", 1) == 1);
	for (int i = 0; i < MESSAGES; i++)
		CHECK(completion(pair.recv_cq).status == IBV_WC_SUCCESS);
	exit(0);
}

static void send_to(int socket)
{
	char ready;
	connect_to(socket);
	CHECK(read(socket, &ready, 1) == 1);
	for (int i = 0; i < MESSAGES; i++) {
		CHECK(!post_send(&pair, 0, IBV_WR_SEND, IBV_SEND_SIGNALED, part(&pair, 0, 8), 0));
		/* The receiver has time to find nothing. */
		usleep(i * 100);
	}
	for (int i = 0; i < MESSAGES; i++)
		CHECK(completion(pair.send_cq).status == IBV_WC_SUCCESS);
}

int main(void)
{
	make_pair(&pair, 0, 0);
	for (int round = 0; round < ROUNDS; round++) {
		int sockets[2], status;
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid)
			receive(sockets[1]);
		send_to(sockets[0]);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
		close(sockets[0]);
		close(sockets[1]);
	}
	destroy_pair(&pair);
	return 0;
}
