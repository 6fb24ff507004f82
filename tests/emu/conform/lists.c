/* The cases of `conform`. */
#include "tests/emu/conform/conform.h"

const struct conform_case *const conform_lists[] = {conform_numbers, conform_copies,
                                                    conform_products, conform_builtins, NULL};
