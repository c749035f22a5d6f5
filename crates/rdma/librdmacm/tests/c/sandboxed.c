/*
 * A process that may open no descriptor, not even have the kernel poll its open ones, keeps its connections: waiting threads use
 * no processor time, nor does the library's thread, and arriving data is read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define PORT 7197
/* The most of a second that it may take. */
#define LITTLE 0.3

static struct sockaddr_in address(void)
{
	return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

/* Says something a second after it was asked to, twice. */
static void client(void)
{
	struct sockaddr_in to = address();
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	char byte;
	CHECK(fd >= 0 && !rconnect(fd, (struct sockaddr *)&to, sizeof(to)));
	for (int i = 0; i < 2; i++) {
		CHECK(rrecv(fd, &byte, 1, 0) == 1);
		sleep(1);
		CHECK(rsend(fd, "later", 5, 0) == 5);
	}
	CHECK(rrecv(fd, &byte, 1, 0) == 0 && !rclose(fd));
}

/* A clock for the time that the library's thread has taken. */
static int of_the_librarys_thread(void)
{
	char path[300], name[16];
	DIR *threads = opendir("/proc/self/task");
	struct dirent *thread;
	CHECK(threads);
	while ((thread = readdir(threads))) {
		FILE *file;
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", thread->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		CHECK(fscanf(file, "%15s", name) == 1 && !fclose(file));
		if (!strcmp(name, "transhume-cm"))
			break;
	}
	CHECK(thread);
	snprintf(path, sizeof(path), "/proc/self/task/%s/schedstat", thread->d_name);
	CHECK(!closedir(threads));
	return open(path, O_RDONLY);
}

static double taken_by_the_librarys_thread(int file)
{
	char text[100] = "";
	CHECK(pread(file, text, sizeof(text) - 1, 0) > 0);
	return strtoull(text, NULL, 10) / 1e9;
}

static double taken_by_this_thread(void)
{
	struct rusage usage;
	CHECK(!getrusage(RUSAGE_THREAD, &usage));
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void is_read(int fd)
{
	char got[5];
	CHECK(rrecv(fd, got, sizeof(got), MSG_WAITALL) == sizeof(got) && !memcmp(got, "later", sizeof(got)));
}

static void is_polled_and_read(int fd)
{
	struct pollfd entry = {.fd = fd, .events = POLLIN};
	CHECK(rpoll(&entry, 1, 10000) == 1 && entry.revents == POLLIN);
	is_read(fd);
}

int main(void)
{
	struct sockaddr_in at = address();
	void (*const waits[])(int) = {is_read, is_polled_and_read};
	int listening, fd, file, status;
	pid_t child = fork();
	CHECK(child >= 0);
	alarm(50);
	if (child == 0) {
		/* Until a listener is there. */
		usleep(200000);
		client();
		_exit(0);
	}
	listening = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(listening >= 0 && !rbind(listening, (struct sockaddr *)&at, sizeof(at)) && !rlisten(listening, 1));
	fd = raccept(listening, NULL, NULL);
	file = of_the_librarys_thread();
	CHECK(fd >= 0 && file >= 0 && !setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0}));
	for (int i = 0; i < 2; i++) {
		double own = taken_by_this_thread(), others = taken_by_the_librarys_thread(file);
		CHECK(rsend(fd, "b", 1, 0) == 1);
		waits[i](fd);
		CHECK(taken_by_this_thread() - own < LITTLE);
		CHECK(taken_by_the_librarys_thread(file) - others < LITTLE);
	}
	CHECK(!rclose(fd) && !rclose(listening));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	return 0;
}
