/*
 * The time that libfabric's tcp provider takes for the messages that perftest measures; Debian has none of its
 * benchmarks.
 *
 *   fabric_perf server|client ADDRESS PORT MODE SIZE ITERATIONS
 *
 * ADDRESS is the server's. The modes are perftest's names:
 *
 *   send_lat, write_lat   messages to and fro; the client prints the median of one way: `latency_us=8.36`
 *   send_bw, write_bw     the client's messages, until the server has answered the last:
 *                         `bandwidth_mib_s=450.1 rate_m_s=0.0072`
 *
 * Both ends have one connected endpoint (FI_EP_MSG), spin, and make the provider's progress themselves. Short messages
 * are injected. A write's target looks at its memory and gets no completion.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Messages on their way, and receives posted. */
#define WINDOW 128
/* Seconds after which it gives up. */
#define LIMIT 60

static bool is_client, writes;
static size_t size;
static struct fi_info *info;
static struct fid_eq *eq;
static struct fid_cq *cq;
static struct fid_ep *ep;
/* Buffers: sent data, and where messages and writes arrive. */
static char *source, *target;
/* Sends and writes, how many of them are complete, and messages received. */
static uint64_t posted, sent, received;

/* The result of a call that must not fail. */
static ssize_t good(ssize_t result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "fabric_perf: %s: %s\n", what, fi_strerror(-result));
		exit(1);
	}
	return result;
}
#define GOOD(call) good(call, #call)

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* Takes completions; the context of each is its counter. */
static void progress(void)
{
	struct fi_cq_entry done[16];
	ssize_t count = fi_cq_read(cq, done, 16);
	if (count == -FI_EAGAIN)
		return;
	struct fi_cq_err_entry error = {};
	if (count == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1)
		good(-error.err, "a completion");
	GOOD(count);
	for (ssize_t i = 0; i < count; i++)
		++*(uint64_t *)done[i].op_context;
}

/* A call that is made again while there is no room. */
#define POST(call) do { \
		ssize_t result; \
		while ((result = (call)) == -FI_EAGAIN) \
			progress(); \
		good(result, #call); \
	} while (0)

static void post_receive(void)
{
	POST(fi_recv(ep, target, size, NULL, 0, &received));
}

static void await_sent(uint64_t count)
{
	while (sent < count)
		progress();
}

/* Waits for message `count`, and posts a receive in its place. */
static void await_received(uint64_t count)
{
	while (received < count)
		progress();
	post_receive();
}

/* The target of a write is offset 0 of the region with key 0: the provider knows no other addresses by default. */
static void post_message(bool write, size_t length)
{
	posted++;
	if (length > info->tx_attr->inject_size) {
		if (write)
			POST(fi_write(ep, source, length, NULL, 0, 0, 0, &sent));
		else
			POST(fi_send(ep, source, length, NULL, 0, &sent));
		return;
	}
	if (write)
		POST(fi_inject_write(ep, source, length, 0, 0, 0));
	else
		POST(fi_inject(ep, source, length, 0));
	sent++;
}

/* One message or write to the peer; a write's last byte is its turn. */
static void ping(uint64_t turn)
{
	await_sent(posted);
	source[size - 1] = turn;
	post_message(writes, size);
}

static void await_ping(uint64_t turn)
{
	if (!writes)
		return await_received(turn);
	volatile char *last = target + size - 1;
	while (*last != (char)turn)
		progress();
}

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;
	return (difference > 0) - (difference < 0);
}

/* Messages to and fro. The first tenth does not count. */
static void measure_latency(uint64_t iterations)
{
	uint64_t warm_up = iterations / 10;
	double *times = calloc(iterations, sizeof(*times));
	for (uint64_t turn = 1; turn <= warm_up + iterations; turn++) {
		double start = now();
		if (is_client)
			ping(turn);
		await_ping(turn);
		if (!is_client)
			ping(turn);
		if (turn > warm_up)
			times[turn - warm_up - 1] = now() - start;
	}
	await_sent(posted);
	qsort(times, iterations, sizeof(*times), compare);
	if (is_client)
		printf("latency_us=%.4f\n", times[iterations / 2] / 2 * 1e6);
	free(times);
}

/* Messages from client to server, one more that ends them, and its answer. How long that took. */
static double stream(uint64_t count)
{
	double start = now();
	/* Writes pass without the server's doing, which waits for the message after them. */
	uint64_t messages = received + (writes || is_client ? 0 : count);
	for (uint64_t i = 0; is_client && i < count; i++) {
		while (posted - sent >= WINDOW)
			progress();
		post_message(writes, size);
	}
	while (!is_client && received < messages)
		await_received(received + 1);
	if (is_client)
		post_message(false, 1);
	await_received(messages + 1);
	if (!is_client)
		post_message(false, 1);
	await_sent(posted);
	return now() - start;
}

static void measure_bandwidth(uint64_t iterations)
{
	stream(iterations / 10);
	double seconds = stream(iterations);
	if (is_client)
		printf("bandwidth_mib_s=%.4f rate_m_s=%.6f\n", iterations * size / seconds / (1 << 20),
			iterations / seconds / 1e6);
}

/* The next event. Exactly one event is good here. */
static void await_event(uint32_t expected, struct fi_eq_cm_entry *entry)
{
	uint32_t event;
	GOOD(fi_eq_sread(eq, &event, entry, sizeof(*entry), -1, 0));
	if (event != expected)
		good(-FI_EOTHER, "an unexpected event");
}

/* The endpoint, whose receives are posted before the peer can send. */
static void open_endpoint(struct fid_fabric *fabric)
{
	struct fid_domain *domain;
	struct fid_mr *region;
	struct fi_cq_attr attr = {.format = FI_CQ_FORMAT_CONTEXT, .size = 4 * WINDOW};
	GOOD(fi_domain(fabric, info, &domain, NULL));
	GOOD(fi_cq_open(domain, &attr, &cq, NULL));
	GOOD(fi_mr_reg(domain, target, size, FI_REMOTE_WRITE, 0, 0, 0, &region, NULL));
	GOOD(fi_endpoint(domain, info, &ep, NULL));
	GOOD(fi_ep_bind(ep, &eq->fid, 0));
	GOOD(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	GOOD(fi_enable(ep));
	for (int i = 0; i < WINDOW; i++)
		post_receive();
}

static void connect_endpoint(const char *address, const char *port)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_eq_cm_entry entry;
	struct fid_fabric *fabric;
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->fabric_attr->prov_name = strdup("tcp");
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	/* The message that ends writes comes after them. */
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAW | FI_ORDER_SAS;
	GOOD(fi_getinfo(FI_VERSION(1, 17), address, port, is_client ? 0 : FI_SOURCE, hints, &info));
	GOOD(fi_fabric(info->fabric_attr, &fabric, NULL));
	GOOD(fi_eq_open(fabric, &attr, &eq, NULL));
	if (is_client) {
		open_endpoint(fabric);
		GOOD(fi_connect(ep, info->dest_addr, NULL, 0));
	} else {
		struct fid_pep *listener;
		GOOD(fi_passive_ep(fabric, info, &listener, NULL));
		GOOD(fi_pep_bind(listener, &eq->fid, 0));
		GOOD(fi_listen(listener));
		await_event(FI_CONNREQ, &entry);
		info = entry.info;
		open_endpoint(fabric);
		GOOD(fi_accept(ep, NULL, 0));
	}
	await_event(FI_CONNECTED, &entry);
}

/* Ends the connection from the client's side, so that the server's last bytes are on their way before it ends. */
static void disconnect(void)
{
	struct fi_cq_entry flushed;
	struct fi_eq_cm_entry entry;
	uint32_t event;
	if (is_client) {
		GOOD(fi_shutdown(ep, 0));
		return;
	}
	while (fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == -FI_EAGAIN)
		fi_cq_read(cq, &flushed, 1);
}

int main(int argc, char **argv)
{
	uint64_t iterations = argc == 7 ? strtoull(argv[6], NULL, 10) : 0;
	size = argc == 7 ? strtoull(argv[5], NULL, 10) : 0;
	if (!size || !iterations) {
		fprintf(stderr, "usage: fabric_perf server|client ADDRESS PORT MODE SIZE ITERATIONS\n");
		return 2;
	}
	const char *mode = argv[4];
	is_client = !strcmp(argv[1], "client");
	writes = !strncmp(mode, "write_", 6);
	source = calloc(1, size);
	target = calloc(1, size);
	alarm(LIMIT);
	connect_endpoint(argv[2], argv[3]);
	if (strstr(mode, "_lat"))
		measure_latency(iterations);
	else
		measure_bandwidth(iterations);
	disconnect();
	return 0;
}
