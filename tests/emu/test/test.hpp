// Checks of plain test programs: what fails is printed with its place, and counted.
#pragma once

#include <stdio.h>

extern int n_failed;
#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: ", __FILE__, __LINE__);                                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
            n_failed++;                                                                            \
        }                                                                                          \
    } while (0)

// The parts of the program; each checks one side of the device.
void test_kernels();
void test_faults();
void test_engine();
void tell_speed(); // of nothing that is checked
