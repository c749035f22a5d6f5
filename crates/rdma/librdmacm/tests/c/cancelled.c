/* Threads are cancelled only where they wait. The objects that they used can be used again. */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sys/select.h>
#include <unistd.h>

#include "check.h"
#include "descriptors.h"

#define PORT 7187
#define WAITS 10
#define CANCELS 100

/* Bound, listening, two ends of a stream. */
static int datagrams, listening, near, far;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;

static struct sockaddr_in address(int port)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int bound(int type, int port)
{
	struct sockaddr_in at = address(port);
	int fd = rsocket(AF_INET, type, 0);
	CHECK(fd >= 0 && !rbind(fd, (struct sockaddr *)&at, sizeof(at)));
	return fd;
}

static void *connects_in_vain(void *fd)
{
	struct sockaddr_in to = address(PORT + 2);
	CHECK(rconnect(*(int *)fd, (struct sockaddr *)&to, sizeof(to)));
	return NULL;
}

static void accepts(void)
{
	raccept(listening, NULL, NULL);
}

static void receives(void)
{
	char byte;
	rrecv(near, &byte, 1, 0);
}

static void receives_a_datagram(void)
{
	char byte;
	rrecv(datagrams, &byte, 1, 0);
}

static void sends(void)
{
	static char data[1 << 20];
	for (;;)
		rsend(near, data, sizeof(data), 0);
}

static void polls(void)
{
	struct pollfd entries[] = {{.fd = listening, .events = POLLIN}, {.fd = near, .events = POLLIN}};
	rpoll(entries, 2, -1);
}

static void selects(void)
{
	fd_set reads;
	FD_ZERO(&reads);
	FD_SET(listening, &reads);
	FD_SET(near, &reads);
	rselect(near + listening, &reads, NULL, NULL, NULL);
}

static void awaits_an_event(void)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(channel, &event);
}

static void awaits_a_request(void)
{
	struct rdma_cm_id *id;
	rdma_get_request(listener, &id);
}

static void makes_channels(void)
{
	struct rdma_event_channel *made = rdma_create_event_channel();
	CHECK(made);
	rdma_destroy_event_channel(made);
}

static struct rdma_cm_id *create(void)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static struct rdma_cm_id *listening_at(int port, struct rdma_event_channel *of)
{
	struct sockaddr_in at = address(port);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(of, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&at) && !rdma_listen(id, 1));
	return id;
}

static void listens(void)
{
	struct sockaddr_in any = {.sin_family = AF_INET};
	struct rdma_cm_id *id = create();
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&any) && !rdma_listen(id, 1) && !rdma_destroy_id(id));
}

static void resolves(void)
{
	struct sockaddr_in to = address(PORT);
	struct rdma_cm_id *id = create();
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000) && !rdma_destroy_id(id));
}

static void makes_sockets(void)
{
	CHECK(!rclose(bound(SOCK_STREAM, 0)) && !rclose(bound(SOCK_DGRAM, 0)));
}

static void *works(void *work)
{
	for (;;) {
		pthread_testcancel();
		((void (*)(void))work)();
	}
	return NULL;
}

static void cancel(pthread_t thread)
{
	void *result;
	CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
}

/* Most times while it sleeps. */
static void is_cancelled_in(void (*wait)(void))
{
	for (int i = 0; i < WAITS; i++) {
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, works, wait));
		usleep(i % 2 ? 20000 : rand() % 1000);
		cancel(thread);
	}
}

static void is_cancelled_between(void (*work)(void))
{
	for (int i = 0; i < CANCELS; i++) {
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, works, work));
		usleep(100 + rand() % 500);
		cancel(thread);
	}
}

static void make_a_pair(void)
{
	struct sockaddr_in to = address(PORT);
	near = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(near >= 0 && !rconnect(near, (struct sockaddr *)&to, sizeof(to)));
	far = raccept(listening, NULL, NULL);
	CHECK(far >= 0);
}

static void speak(void)
{
	char byte = 'x';
	CHECK(rsend(far, &byte, 1, 0) == 1 && rrecv(near, &byte, 1, 0) == 1 && byte == 'x');
}

static void connects_are_cancelled(void)
{
	for (int i = 0; i < WAITS; i++) {
		int fd = rsocket(AF_INET, SOCK_STREAM, 0);
		pthread_t thread;
		CHECK(fd >= 0 && !pthread_create(&thread, NULL, connects_in_vain, &fd));
		usleep(20000);
		cancel(thread);
		CHECK(!rclose(fd));
	}
}

static void cancel_all(void)
{
	make_a_pair();
	is_cancelled_in(accepts);
	is_cancelled_in(receives);
	is_cancelled_in(receives_a_datagram);
	is_cancelled_in(polls);
	is_cancelled_in(selects);
	is_cancelled_in(awaits_an_event);
	is_cancelled_in(awaits_a_request);
	connects_are_cancelled();
	speak();
	is_cancelled_in(sends);
	CHECK(!rclose(far) && !rclose(near));
	is_cancelled_between(makes_channels);
	is_cancelled_between(listens);
	is_cancelled_between(resolves);
	is_cancelled_between(makes_sockets);
}

int main(void)
{
	alarm(50);
	listening = bound(SOCK_STREAM, PORT);
	datagrams = bound(SOCK_DGRAM, PORT);
	CHECK(!rlisten(listening, 8));
	/* No connection is accepted there. */
	struct rdma_event_channel *unattended = rdma_create_event_channel();
	channel = rdma_create_event_channel();
	CHECK(channel && unattended);
	listener = listening_at(PORT + 1, NULL);
	struct rdma_cm_id *deaf = listening_at(PORT + 2, unattended);
	cancel_all();
	int before = descriptors();
	cancel_all();
	CHECK(descriptors() == before);
	CHECK(!rdma_destroy_id(listener) && !rdma_destroy_id(deaf));
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(unattended);
	CHECK(!rclose(listening) && !rclose(datagrams));
	return 0;
}
