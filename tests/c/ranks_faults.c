/* What happens to the other ranks when something happens to one: processes that run a model together over sockets, again and again, until
 * a rank is killed, stops, loses a message or runs another model.
 *
 *     ranks_faults FAULT ROUNDS SEED MILLISECONDS
 *
 * FAULT is kill, stop, lose or other. Ranks wait for each other for that many milliseconds. Prints a line for each round: the rank that it
 * happened to, the statuses with which the others ended, and how many milliseconds after the fault the last of them did. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "onnxc.h"

/* The models of all ranks, written by the test. */
#include "models.h"

enum { RANKS = sizeof models / sizeof models[0], ABORTED = -1, RUNS_BEFORE = 3, DIFFERENT = 100 };

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static uint64_t seed;

/* A number below `bound`. */
static uint64_t draw(uint64_t bound) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % bound;
}

/* A rank's sockets to the others. */
typedef struct wires {
    int rank;
    int fds[RANKS];
    int64_t timeout;
    /* How many messages are still sent before one is lost; -1 for none. */
    int64_t until_lost;
} wires;

/* A message on its way: its length, then its bytes. */
typedef struct part {
    int fd;
    char *data;
    int64_t header;
    size_t bytes, done;
} part;

/* Moves what can be moved now. 1 when all is done, -1 when the other end is gone, -2 where the length is another one, -3 where it gave up. */
static int move_part(part *own, int is_send) {
    while (own->done < sizeof own->header + own->bytes) {
        int in_header = own->done < sizeof own->header;
        char *at = in_header ? (char *)&own->header + own->done : own->data + (own->done - sizeof own->header);
        size_t left = in_header ? sizeof own->header - own->done : own->bytes - (own->done - sizeof own->header);
        ssize_t moved = is_send ? send(own->fd, at, left, MSG_NOSIGNAL) : recv(own->fd, at, left, 0);
        if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            return 0;
        }
        if (moved <= 0) {
            return -1;
        }
        own->done += (size_t)moved;
        if (!is_send && own->done == sizeof own->header && own->header != (int64_t)own->bytes) {
            return own->header == ABORTED ? -3 : -2;
        }
    }
    return 1;
}

static int32_t exchange(void *context, const onnxc_message *sends, size_t send_count, const onnxc_message *receives,
                        size_t receive_count) {
    wires *own = context;
    part parts[2 * RANKS];
    struct pollfd polls[2 * RANKS];
    size_t count = 0, at;
    int64_t end = now() + 1000 * own->timeout;
    CHECK(send_count <= RANKS && receive_count <= RANKS);
    for (at = 0; at < send_count; at++) {
        if (own->until_lost >= 0 && own->until_lost-- == 0) {
            continue;
        }
        parts[count++] = (part){own->fds[sends[at].rank], sends[at].data, (int64_t)sends[at].bytes, sends[at].bytes, 0};
    }
    send_count = count;
    for (at = 0; at < receive_count; at++) {
        parts[count++] = (part){own->fds[receives[at].rank], receives[at].data, 0, receives[at].bytes, 0};
    }
    for (;;) {
        nfds_t open = 0;
        for (at = 0; at < count; at++) {
            int is_send = at < send_count, moved = move_part(&parts[at], is_send);
            if (moved < 0) {
                return moved == -2 ? ONNXC_OTHER_MODEL : ONNXC_RANK_FAILED;
            }
            if (moved == 0) {
                polls[open++] = (struct pollfd){parts[at].fd, is_send ? POLLOUT : POLLIN, 0};
            }
        }
        if (open == 0) {
            return ONNXC_OK;
        }
        if (now() >= end) {
            return ONNXC_TIMEOUT;
        }
        poll(polls, open, (int)((end - now()) / 1000 + 1));
    }
}

static int32_t abort_all(void *context, int32_t status) {
    wires *own = context;
    int64_t header = ABORTED;
    int rank;
    (void)status;
    for (rank = 0; rank < RANKS; rank++) {
        if (rank != own->rank) {
            (void)!send(own->fds[rank], &header, sizeof header, MSG_NOSIGNAL);
        }
    }
    return ONNXC_OK;
}

static void *reserve(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    CHECK(memory != NULL);
    return memory;
}

/* Runs a rank until something fails; the status is what the process ends with. */
static int run_rank(wires *own, const onnxc_model *model, int ready) {
    onnxc_options options = ONNXC_OPTIONS_INIT;
    onnxc_transport transport = {sizeof transport, own, exchange, abort_all};
    onnxc_tensor input, output;
    int64_t dims[] = {5, 16}, workspace_bytes, symbols[8], runs;
    float *x = reserve(sizeof(float) * 5 * 16), *y = reserve(sizeof(float) * 5 * 16), first[5 * 16];
    void *workspace;
    int at;
    for (at = 0; at < 5 * 16; at++) {
        x[at] = 0.01f * (float)(at % 37) - 0.2f;
    }
    input = onnxc_make_tensor(x, sizeof first, ONNXC_FLOAT, 2, dims);
    output = onnxc_make_tensor(y, sizeof first, ONNXC_FLOAT, 2, dims);
    CHECK(model->symbol_count <= 8);
    workspace_bytes = onnxc_model_workspace_for(model, &input, 1, symbols);
    CHECK(workspace_bytes >= 0);
    workspace = reserve((size_t)workspace_bytes);
    options.communicator = onnxc_communicator_create(&transport, own->rank, RANKS);
    CHECK(options.communicator != NULL);
    for (runs = 0;; runs++) {
        int32_t status =
            onnxc_model_run(model)(&input, 1, &output, 1, workspace, (size_t)workspace_bytes, &options);
        if (status != ONNXC_OK) {
            return (int)status;
        }
        if (runs == 0) {
            memcpy(first, y, sizeof first);
        }
        if (memcmp(first, y, sizeof first) != 0) {
            return DIFFERENT;
        }
        if (runs == RUNS_BEFORE) {
            CHECK(write(ready, "r", 1) == 1);
        }
    }
}

static void start(int rank, int pairs[RANKS][RANKS], const char *fault, int victim, int64_t timeout, int ready) {
    wires own = {rank, {0}, timeout, -1};
    const onnxc_model *model = models[rank]();
    int a, b;
    for (a = 0; a < RANKS; a++) {
        for (b = 0; b < RANKS; b++) {
            if (a == rank) {
                own.fds[b] = pairs[a][b];
            } else if (a != b) {
                close(pairs[a][b]);
            }
        }
    }
    if (strcmp(fault, "lose") == 0 && rank == victim) {
        own.until_lost = (int64_t)draw(200);
    }
    if (strcmp(fault, "other") == 0 && rank == victim) {
        model = others[rank]();
    }
    exit(run_rank(&own, model, ready));
}

static void play(const char *fault, int64_t timeout) {
    int pairs[RANKS][RANKS], ready[2], victim = (int)draw(RANKS), a, b, rank, left = RANKS;
    int comes = strcmp(fault, "kill") == 0 || strcmp(fault, "stop") == 0, statuses[RANKS];
    pid_t pids[RANKS];
    int64_t begin;
    char byte;
    CHECK(pipe(ready) == 0);
    for (a = 0; a < RANKS; a++) {
        for (b = a + 1; b < RANKS; b++) {
            int both[2];
            CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0);
            pairs[a][b] = both[0];
            pairs[b][a] = both[1];
        }
    }
    fflush(stdout);
    for (rank = 0; rank < RANKS; rank++) {
        pids[rank] = fork();
        CHECK(pids[rank] >= 0);
        if (pids[rank] == 0) {
            close(ready[0]);
            start(rank, pairs, fault, victim, timeout, ready[1]);
        }
    }
    for (a = 0; a < RANKS; a++) {
        for (b = 0; b < RANKS; b++) {
            if (a != b) {
                close(pairs[a][b]);
            }
        }
    }
    close(ready[1]);
    begin = now();
    if (comes) {
        struct timespec random_time = {0, 0};
        /* All are under way. */
        for (rank = 0; rank < RANKS; rank++) {
            CHECK(read(ready[0], &byte, 1) == 1);
        }
        random_time.tv_nsec = (long)draw(20000000);
        nanosleep(&random_time, NULL);
        begin = now();
        CHECK(kill(pids[victim], strcmp(fault, "kill") == 0 ? SIGKILL : SIGSTOP) == 0);
    }
    /* One that has stopped never ends. */
    if (strcmp(fault, "stop") == 0) {
        left--;
    }
    while (left > 0) {
        int status;
        pid_t ended = wait(&status);
        CHECK(ended > 0);
        for (rank = 0; rank < RANKS; rank++) {
            if (pids[rank] == ended) {
                statuses[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
                left--;
            }
        }
    }
    printf("%s %d", fault, victim);
    for (rank = 0; rank < RANKS; rank++) {
        if (rank != victim || !comes) {
            printf(" %d", statuses[rank]);
        }
    }
    printf(" %lld\n", (long long)(now() - begin) / 1000);
    if (strcmp(fault, "stop") == 0) {
        kill(pids[victim], SIGKILL);
        waitpid(pids[victim], NULL, 0);
    }
    close(ready[0]);
}

int main(int argc, char **argv) {
    int rounds;
    CHECK(argc == 5);
    seed = strtoull(argv[3], NULL, 10);
    for (rounds = atoi(argv[2]); rounds > 0; rounds--) {
        play(argv[1], strtoll(argv[4], NULL, 10));
    }
    return 0;
}
