/* Marks what the library exports. */
#ifndef GR_API_H
#define GR_API_H

#if defined(__GNUC__)
#define GR_API __attribute__((visibility("default")))
#else
#define GR_API
#endif

#endif
