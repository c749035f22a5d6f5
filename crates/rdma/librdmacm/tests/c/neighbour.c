/*
 * A program with sockets has a hostile neighbour, which speaks the connection manager and verbs itself. Each attack ends only the
 * attacker's connection, with an error for the program, and a third process' connection works on.
 *
 * The program and the attacker take turns: messages have arrived before the program looks.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7175
#define WINDOW 48
#define SLOT (16 * 1024)
#define GUARD 64
#define LENT 4096

enum { DATA, CREDITS, END, MAPPING };
#define WORD(kind, credits) ((uint32_t)(kind) << 28 | (credits))

static const char agreement[] = {'r', 's', 'k', 1, WINDOW, SLOT / 1024};

struct mapping {
	uint64_t offset, length, address;
	uint32_t key;
} __attribute__((packed));

/* One SEND, or many of the same. */
struct attack {
	const char *name;
	enum ibv_wr_opcode opcode;
	uint32_t word, length;
	int times;
	/* The bytes that the program reads before the error, and the error. */
	int reads, hears;
	/* Sent before. */
	const uint32_t *first;
};

static const uint32_t end = WORD(END, 0);

static const struct attack attacks[] = {
	{"credits that were not taken", IBV_WR_SEND_WITH_IMM, WORD(CREDITS, 1), 0, 1, 0, EPROTO},
	{"the most credits", IBV_WR_SEND_WITH_IMM, WORD(DATA, 0x0fffffff), 1, 1, 0, EPROTO},
	{"data of no bytes", IBV_WR_SEND_WITH_IMM, WORD(DATA, 0), 0, 1, 0, EPROTO},
	{"more than a slot", IBV_WR_SEND_WITH_IMM, WORD(DATA, 0), SLOT + 1, 1, 0, ECONNRESET},
	{"more than the window", IBV_WR_SEND_WITH_IMM, WORD(DATA, 0), 1, WINDOW + 1, WINDOW, EPROTO},
	{"data after the end", IBV_WR_SEND_WITH_IMM, WORD(DATA, 0), 1, 1, 0, EPROTO, &end},
	{"a second end", IBV_WR_SEND_WITH_IMM, WORD(END, 0), 0, 1, 0, EPROTO, &end},
	{"an end with data", IBV_WR_SEND_WITH_IMM, WORD(END, 0), 5, 1, 0, EPROTO},
	{"a short mapping", IBV_WR_SEND_WITH_IMM, WORD(MAPPING, 0), sizeof(struct mapping) - 1, 1, 0, EPROTO},
	{"a long mapping", IBV_WR_SEND_WITH_IMM, WORD(MAPPING, 0), SLOT, 1, 0, EPROTO},
	{"an unknown word", IBV_WR_SEND_WITH_IMM, WORD(15, 0), 8, 1, 0, EPROTO},
	{"no word", IBV_WR_SEND, 0, 8, 1, 0, EPROTO},
	{"a word without a SEND", IBV_WR_RDMA_WRITE_WITH_IMM, WORD(DATA, 0), 0, 1, 0, EPROTO},
};
#define ATTACKS (sizeof(attacks) / sizeof(attacks[0]))

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* The other process' turn, and then ours again. */
static void pass(int turns)
{
	CHECK(write(turns, "", 1) == 1);
}

static void wait_for(int turns)
{
	char byte;
	CHECK(read(turns, &byte, 1) == 1);
}

/* The attacker. */

static char memory[2 * SLOT];

static struct rdma_cm_id *ask(const void *private, int length)
{
	struct sockaddr_in to = address();
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr attr = {
		.cap = {.max_send_wr = 64, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	struct rdma_conn_param param = {
		.private_data = private, .private_data_len = length, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
	};
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 5000) && !rdma_resolve_route(id, 5000));
	CHECK(!rdma_create_qp(id, NULL, &attr));
	/* The input of the program is not read, but must have a place. */
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, sizeof(memory));
	CHECK(mr);
	for (int i = 0; i < 8; i++)
		CHECK(!rdma_post_recv(id, mr, memory + SLOT, SLOT, mr));
	if (!rdma_connect(id, &param))
		return id;
	CHECK(errno == ECONNREFUSED);
	rdma_destroy_ep(id);
	return NULL;
}

static enum ibv_wc_status post(struct rdma_cm_id *id, enum ibv_wr_opcode opcode, uint32_t word, uint32_t length,
			       uint64_t remote, uint32_t key)
{
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, sizeof(memory));
	struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = length, .lkey = mr->lkey};
	struct ibv_send_wr *bad, request = {
		.sg_list = &sge, .num_sge = length > 0, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(word), .wr.rdma = {.remote_addr = remote, .rkey = key},
	};
	struct ibv_wc completion;
	CHECK(!ibv_post_send(id->qp, &request, &bad) && rdma_get_send_comp(id, &completion) == 1);
	CHECK(!rdma_dereg_mr(mr));
	return completion.status;
}

static struct rdma_cm_id *connect_well(void)
{
	struct rdma_cm_id *id = ask(agreement, sizeof(agreement));
	CHECK(id);
	return id;
}

static void attack_by_words(int turns)
{
	for (unsigned at = 0; at < ATTACKS; at++) {
		const struct attack *attack = &attacks[at];
		struct rdma_cm_id *id = connect_well();
		if (attack->first)
			CHECK(post(id, IBV_WR_SEND_WITH_IMM, *attack->first, 0, 0, 0) == IBV_WC_SUCCESS);
		for (int time = 0; time < attack->times; time++)
			post(id, attack->opcode, attack->word, attack->length, 0, 0);
		pass(turns);
		wait_for(turns);
		rdma_disconnect(id);
		rdma_destroy_ep(id);
	}
}

/* Memory that was lent to one connection is not valid for another, and bytes written there are no data. */
static void attack_memory(int turns)
{
	struct rdma_cm_id *id = connect_well(), *other = connect_well();
	struct ibv_wc completion;
	CHECK(rdma_get_recv_comp(id, &completion) == 1 && completion.status == IBV_WC_SUCCESS);
	CHECK(ntohl(completion.imm_data) >> 28 == MAPPING && completion.byte_len == sizeof(struct mapping));
	struct mapping lent;
	memcpy(&lent, memory + SLOT, sizeof(lent));
	uint64_t at = be64toh(lent.address);
	uint32_t key = ntohl(lent.key);
	CHECK(be64toh(lent.length) == LENT);
	memset(memory, 'w', LENT);
	CHECK(post(id, IBV_WR_RDMA_WRITE, 0, LENT, at, key) == IBV_WC_SUCCESS);
	memset(memory, 'x', LENT);
	CHECK(post(other, IBV_WR_RDMA_WRITE, 0, LENT, at, key) == IBV_WC_REM_ACCESS_ERR);
	/* The receive of this one holds nothing. */
	memset(memory, 'w', LENT);
	CHECK(post(id, IBV_WR_RDMA_WRITE_WITH_IMM, WORD(DATA, 0), LENT, at, key) == IBV_WC_SUCCESS);
	pass(turns);
	wait_for(turns);
	rdma_destroy_ep(id);
	rdma_destroy_ep(other);
}

/* The program gets an invalid offset. */
static void attack_with_a_place(int turns)
{
	struct rdma_cm_id *id = connect_well();
	struct mapping nowhere = {.offset = htobe64(64), .length = htobe64(LENT), .address = ~0ull, .key = ~0u};
	memcpy(memory, &nowhere, sizeof(nowhere));
	CHECK(post(id, IBV_WR_SEND_WITH_IMM, WORD(MAPPING, 0), sizeof(nowhere), 0, 0) == IBV_WC_SUCCESS);
	pass(turns);
	wait_for(turns);
	rdma_destroy_ep(id);
}

static void attack(int turns)
{
	static const char wrong[][6] = {{}, {'r', 's', 'k'}, {'r', 's', 'k', 2, WINDOW, SLOT / 1024}, {'r', 's', 'k', 1, 255, 255}};
	wait_for(turns);
	CHECK(!ask(NULL, 0));
	for (unsigned at = 0; at < sizeof(wrong) / sizeof(wrong[0]); at++)
		CHECK(!ask(wrong[at], sizeof(wrong[at])));
	attack_by_words(turns);
	attack_memory(turns);
	attack_with_a_place(turns);
	exit(0);
}

/* The third process: sends back its input. */
static void echo(int turns)
{
	struct sockaddr_in to = address();
	char bytes[16];
	wait_for(turns);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	for (;;) {
		ssize_t got = rrecv(fd, bytes, sizeof(bytes), 0);
		CHECK(got >= 0);
		if (!got)
			break;
		CHECK(rsend(fd, bytes, got, 0) == got);
	}
	CHECK(!rclose(fd));
	exit(0);
}

/* The program. */

static pid_t start(void (*run)(int), int *turns)
{
	int ends[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(ends[0]);
		run(ends[1]);
	}
	close(ends[1]);
	*turns = ends[0];
	return pid;
}

static int accept_one(int listening)
{
	int fd = raccept(listening, NULL, NULL);
	CHECK(fd >= 0);
	return fd;
}

static void check_third(int fd)
{
	char bytes[8] = "";
	CHECK(rsend(fd, "goes on", 8, 0) == 8 && rrecv(fd, bytes, 8, MSG_WAITALL) == 8 && !strcmp(bytes, "goes on"));
}

static void check_guards(const char *bytes, size_t length)
{
	for (int i = 0; i < GUARD; i++)
		CHECK(bytes[i] == 'g' && bytes[GUARD + length + i] == 'g');
}

/* Reads `expected` bytes, and then gets `hears`, for reads and writes, and no more than that. */
static void hear(int fd, const char *of, int expected, int hears)
{
	char bytes[2 * GUARD + 100];
	int total = 0;
	ssize_t got;
	memset(bytes, 'g', sizeof(bytes));
	while ((got = rrecv(fd, bytes + GUARD, 100, 0)) > 0)
		total += got;
	int heard = errno;
	if (got != -1 || total != expected || heard != hears) {
		fprintf(stderr, "%s: read %d, then %zd, errno %d\n", of, total, got, heard);
		exit(1);
	}
	check_guards(bytes, 100);
	struct pollfd entry = {.fd = fd, .events = POLLIN | POLLOUT};
	CHECK(rpoll(&entry, 1, 0) == 1 && entry.revents);
	CHECK(rsend(fd, "x", 1, 0) == -1 && errno == hears);
	CHECK(!rclose(fd));
}

int main(void)
{
	static char lent[2 * GUARD + LENT];
	int attacker, third, status;
	pid_t pids[2] = {start(attack, &attacker), start(echo, &third)};
	struct sockaddr_in at = address();
	int listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 8));
	pass(third);
	int honest = accept_one(listening);
	check_third(honest);
	pass(attacker);
	for (unsigned number = 0; number < ATTACKS; number++) {
		int fd = accept_one(listening);
		wait_for(attacker);
		hear(fd, attacks[number].name, attacks[number].reads, attacks[number].hears);
		check_third(honest);
		pass(attacker);
	}

	memset(lent, 'g', sizeof(lent));
	int lends = accept_one(listening), other = accept_one(listening);
	CHECK(riomap(lends, lent + GUARD, LENT, PROT_WRITE, 0, 0) == 0);
	wait_for(attacker);
	check_guards(lent, LENT);
	for (int i = 0; i < LENT; i++)
		CHECK(lent[GUARD + i] == 'w');
	hear(other, "memory of another connection", 0, ECONNRESET);
	hear(lends, "a WRITE with a word", 0, EPROTO);
	check_third(honest);
	pass(attacker);

	int fd = accept_one(listening);
	wait_for(attacker);
	CHECK(rsend(fd, "x", 1, 0) == 1);
	CHECK(riowrite(fd, lent, 1, 63, 0) == (size_t)-1 && errno == EINVAL);
	CHECK(riowrite(fd, lent, 1, 64 + LENT, 0) == (size_t)-1 && errno == EINVAL);
	riowrite(fd, lent, LENT, 64, 0);
	hear(fd, "a place that is none", 0, ECONNRESET);
	check_third(honest);
	pass(attacker);

	CHECK(!rclose(honest) && !rclose(listening));
	for (int i = 0; i < 2; i++)
		CHECK(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
	return 0;
}
