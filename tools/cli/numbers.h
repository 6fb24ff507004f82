/* Numbers as text, and the clock. */
#ifndef GR_TOOLS_NUMBERS_H
#define GR_TOOLS_NUMBERS_H

/* Returns seconds of a monotonic clock. */
double gr_seconds(void);
/* "1.23 GiB", "2.0 M": n of bytes (step 1024), or of things (step 1000). Returns buf. */
const char *gr_amount(char buf[16], double n, int step);
/* Formats x for JSON: "null" unless finite. Returns buf. */
const char *gr_json_number(char buf[32], double x);

#endif
