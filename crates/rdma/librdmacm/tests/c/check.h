/* Any failure ends the program with its line. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                                \
		}                                                                               \
	} while (0)
