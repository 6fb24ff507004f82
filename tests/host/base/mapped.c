/* Addresses of mapped files are known, and only those, whatever number of files there is. */
#include "base/mapped.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "gpurun.h"

#define N_FILES 600 /* more than two blocks have room for */

static char file[] = "/tmp/gpurun-mapped-XXXXXX";

static void make_file(void)
{
    int fd = mkstemp(file);
    cr_assert(fd >= 0 && ftruncate(fd, 10000) == 0);
    close(fd);
}

static void remove_file(void)
{
    unlink(file);
}

Test(mapped, files, .init = make_file, .fini = remove_file)
{
    static struct gr_file f[N_FILES];
    static const uint8_t *map[N_FILES];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N_FILES; i++) {
            cr_assert_eq(gr_file_open(&f[i], file, true), 0);
            map[i] = f[i].map;
        }
        for (int i = 0; i < N_FILES; i += 2)
            gr_file_close(&f[i]);
        for (int i = 1; i < N_FILES; i += 2) {
            cr_assert(gr_in_model_file(map[i]) && gr_in_model_file(map[i] + 9999));
            gr_file_close(&f[i]);
            cr_assert_not(gr_in_model_file(map[i]));
        }
    }
    struct gr_file read;
    cr_assert_eq(gr_file_open(&read, file, false), 0);
    cr_expect_null(read.map);
    cr_expect_not(gr_in_model_file(NULL));
    cr_expect_not(gr_in_model_file(file));
    gr_file_close(&read);
}

Test(mapped, ends)
{
    static const char a[100];
    cr_assert(gr_mapped_add(a + 10, 50));
    cr_expect_not(gr_mapped_has(a + 9));
    cr_expect(gr_mapped_has(a + 10));
    cr_expect(gr_mapped_has(a + 59));
    cr_expect_not(gr_mapped_has(a + 60));
    gr_mapped_remove(a + 11);
    cr_expect(gr_mapped_has(a + 10), "no range begins there");
    gr_mapped_remove(a + 10);
    cr_expect_not(gr_mapped_has(a + 10));
}

static const char kept[10], changing[10], never[10];
static atomic_bool stop;

static void *change(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        cr_assert(gr_mapped_add(changing, sizeof changing));
        gr_mapped_remove(changing);
    }
    return NULL;
}

Test(mapped, while_others_come_and_go)
{
    pthread_t thread;
    cr_assert(gr_mapped_add(kept, sizeof kept));
    cr_assert_eq(pthread_create(&thread, NULL, change, NULL), 0);
    for (int i = 0; i < 100000; i++) {
        cr_assert(gr_mapped_has(kept + 5));
        cr_assert_not(gr_mapped_has(never));
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    gr_mapped_remove(kept);
}
