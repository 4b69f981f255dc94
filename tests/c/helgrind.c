/* Threads that share nothing but the model, each with loops on threads of its own, for a checker of races. All results
 * have the same bits. */
#include "check.h"
#include "busy.h"

#include <pthread.h>

enum { CALLERS = 8, MOST_THREADS = 8 };

static float x[8 * 40 * 40], expected[32 * 40 * 24];
static int runs;

/* A share of a loop. */
typedef struct share {
    onnxc_range_fn body;
    void *job;
    int64_t begin, end;
    int32_t result;
} share;

/* The threads of a caller. They begin and end in `main`: where a system keeps the stacks of threads that have ended, the
 * checker sees races in it. */
typedef struct pool {
    pthread_t threads[MOST_THREADS];
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    share shares[MOST_THREADS];
    /* The number of the loop that runs, the threads that take part, and those that are not done. */
    int loop, members, open, ending;
    /* Members of the next loop; the caller's own. */
    int size;
} pool;

/* What a thread of a pool is. */
typedef struct member {
    pool *own;
    int number;
} member;

static pool pools[CALLERS];
static member members[CALLERS][MOST_THREADS];

static void run_share(share *own) {
    own->result = own->begin < own->end ? own->body(own->job, own->begin, own->end) : 0;
}

static void *worker(void *argument) {
    member *self = (member *)argument;
    pool *own = self->own;
    int loop = 0;
    CHECK(pthread_mutex_lock(&own->lock) == 0);
    for (;;) {
        while (own->loop == loop && !own->ending) {
            CHECK(pthread_cond_wait(&own->work, &own->lock) == 0);
        }
        if (own->ending) {
            CHECK(pthread_mutex_unlock(&own->lock) == 0);
            return NULL;
        }
        loop = own->loop;
        if (self->number < own->members) {
            CHECK(pthread_mutex_unlock(&own->lock) == 0);
            run_share(&own->shares[self->number]);
            CHECK(pthread_mutex_lock(&own->lock) == 0);
            if (--own->open == 0) {
                CHECK(pthread_cond_signal(&own->done) == 0);
            }
        }
    }
}

/* A parallel-for on the first `size` threads of a pool, the caller's included. */
static int32_t parallel_for(void *argument, int64_t begin, int64_t end, onnxc_range_fn body, void *job) {
    pool *own = (pool *)argument;
    int32_t result = 0;
    int at;
    CHECK(pthread_mutex_lock(&own->lock) == 0);
    own->members = own->size;
    for (at = 0; at < own->members; at++) {
        own->shares[at].body = body;
        own->shares[at].job = job;
        own->shares[at].begin = begin + (end - begin) * at / own->members;
        own->shares[at].end = begin + (end - begin) * (at + 1) / own->members;
    }
    own->open = own->members - 1;
    own->loop++;
    CHECK(pthread_cond_broadcast(&own->work) == 0);
    CHECK(pthread_mutex_unlock(&own->lock) == 0);
    run_share(&own->shares[0]);
    CHECK(pthread_mutex_lock(&own->lock) == 0);
    while (own->open > 0) {
        CHECK(pthread_cond_wait(&own->done, &own->lock) == 0);
    }
    for (at = 0; at < own->members; at++) {
        result = result ? result : own->shares[at].result;
    }
    CHECK(pthread_mutex_unlock(&own->lock) == 0);
    return result;
}

static void run(float *y, char *memory, const onnxc_options *options) {
    int64_t x_dims[4] = {1, 8, 40, 40}, y_dims[4] = {1, 32, 40, 24};
    onnxc_tensor in = onnxc_make_tensor(x, sizeof x, ONNXC_FLOAT, 4, x_dims);
    onnxc_tensor out = onnxc_make_tensor(y, sizeof expected, ONNXC_FLOAT, 4, y_dims);
    char *workspace = memory + (64 - (uintptr_t)memory % 64) % 64;
    CHECK(busy_run(&in, 1, &out, 1, workspace, BUSY_WORKSPACE_BYTES, options) == ONNXC_OK);
}

static void *caller(void *argument) {
    static const int sizes[4] = {1, 2, 3, 8};
    pool *own = (pool *)argument;
    float *y = (float *)malloc(sizeof expected);
    char *memory = (char *)malloc(BUSY_WORKSPACE_BYTES + 64);
    int at, size;
    CHECK(y != NULL && memory != NULL);
    for (at = 0; at < runs; at++) {
        for (size = 0; size < 4; size++) {
            onnxc_options options = ONNXC_OPTIONS_INIT;
            own->size = sizes[size];
            options.parallel_for = parallel_for;
            options.pool = own;
            options.threads = sizes[size];
            memset(y, 0xff, sizeof expected);
            run(y, memory, &options);
            CHECK(memcmp(y, expected, sizeof expected) == 0);
        }
    }
    free(memory);
    free(y);
    return NULL;
}

static void begin_pool(int number) {
    pool *own = &pools[number];
    int at;
    CHECK(pthread_mutex_init(&own->lock, NULL) == 0);
    CHECK(pthread_cond_init(&own->work, NULL) == 0 && pthread_cond_init(&own->done, NULL) == 0);
    for (at = 1; at < MOST_THREADS; at++) {
        members[number][at].own = own;
        members[number][at].number = at;
        CHECK(pthread_create(&own->threads[at], NULL, worker, &members[number][at]) == 0);
    }
}

/* Gives the number of loops that ran. */
static int end_pool(int number) {
    pool *own = &pools[number];
    int at;
    CHECK(pthread_mutex_lock(&own->lock) == 0);
    own->ending = 1;
    CHECK(pthread_cond_broadcast(&own->work) == 0);
    CHECK(pthread_mutex_unlock(&own->lock) == 0);
    for (at = 1; at < MOST_THREADS; at++) {
        CHECK(pthread_join(own->threads[at], NULL) == 0);
    }
    return own->loop;
}

int main(int count, char **arguments) {
    pthread_t threads[CALLERS];
    char *memory = (char *)malloc(BUSY_WORKSPACE_BYTES + 64);
    int at;
    CHECK(count == 2 && memory != NULL);
    runs = atoi(arguments[1]);
    for (at = 0; at < 8 * 40 * 40; at++) {
        x[at] = (float)(at % 17 - 8);
    }
    /* The first run also keeps what it finds out about the processor, in a word that all later ones only read: a checker
     * that knows locks but no atomic instructions would take it for a race. */
    run(expected, memory, NULL);
    free(memory);
    for (at = 0; at < CALLERS; at++) {
        begin_pool(at);
    }
    for (at = 0; at < CALLERS; at++) {
        CHECK(pthread_create(&threads[at], NULL, caller, &pools[at]) == 0);
    }
    for (at = 0; at < CALLERS; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
    for (at = 0; at < CALLERS; at++) {
        CHECK(end_pool(at) > 0);
    }
    puts("ok");
    return 0;
}
