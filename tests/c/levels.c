/* A model with two versions of its kernel, first run by four threads at once: prints which version ran. */
#include "check.h"
#include "levels.h"

#include <pthread.h>

static void *worker(void *result) {
    int round;
    for (round = 0; round < 100; round++) {
        int32_t x[6] = {1, 2, 3, 4, 5, 6}, y[6];
        CHECK(levels_predict(x, y, NULL) == ONNXC_OK);
        CHECK(round == 0 || y[5] == *(int32_t *)result);
        *(int32_t *)result = y[5];
    }
    return NULL;
}

int main(void) {
    pthread_t threads[4];
    int32_t results[4];
    int at;
    for (at = 0; at < 4; at++) {
        CHECK(pthread_create(&threads[at], NULL, worker, &results[at]) == 0);
    }
    for (at = 0; at < 4; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
        CHECK(results[at] == results[0]);
    }
    CHECK(results[0] == 11 || results[0] == 1011);
    puts(results[0] == 11 ? "baseline" : "upgrade");
    return 0;
}
