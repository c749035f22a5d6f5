/* Two processes open an XRC domain by the same file: each has a domain of its own, and gets an error for shared use. */
#include "pair.h"
#include <sys/socket.h>

static struct pair pair;

static struct ibv_xrcd *open_domain(int fd, int flags)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
					  .fd = fd, .oflags = flags};
	return ibv_open_xrcd(pair.context, &attr);
}

static struct ibv_qp *open_target(struct ibv_xrcd *domain, uint32_t number)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = number, .xrcd = domain, .qp_type = IBV_QPT_XRC_RECV};
	return ibv_open_qp(pair.context, &attr);
}

static void other(int socket, int fd)
{
	uint32_t number;
	CHECK(read(socket, &number, sizeof(number)) == sizeof(number));
	make_pair(&pair, 0, 0);
	/* This process does not know of another that has made the domain. */
	CHECK(!open_domain(fd, 0) && errno == EAGAIN);
	struct ibv_xrcd *domain = open_domain(fd, O_CREAT | O_EXCL);
	CHECK(domain);
	CHECK(!open_target(domain, number) && errno == ENOENT);
	CHECK(!ibv_close_xrcd(domain));
	destroy_pair(&pair);
	exit(0);
}

int main(void)
{
	FILE *file = tmpfile();
	int sockets[2], status;
	CHECK(file && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		other(sockets[1], fileno(file));
	make_pair(&pair, 0, 0);
	struct ibv_xrcd *domain = open_domain(fileno(file), O_CREAT);
	CHECK(domain);
	struct ibv_qp_init_attr_ex attr = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = domain};
	struct ibv_qp *target = ibv_create_qp_ex(pair.context, &attr);
	CHECK(target);
	struct ibv_qp *again = open_target(domain, target->qp_num);
	CHECK(again && !ibv_destroy_qp(again));
	CHECK(write(sockets[0], &target->qp_num, sizeof(target->qp_num)) == sizeof(target->qp_num));
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!ibv_destroy_qp(target) && !ibv_close_xrcd(domain));
	destroy_pair(&pair);
	return 0;
}
