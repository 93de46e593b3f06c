# SPDX-License-Identifier: Apache-2.0
# This machine, with mpirun. A site's own settings file serves as well.
site_configuration = {
    "systems": [{
        "name": "this",
        "descr": "the machine that ReFrame runs on",
        "hostnames": [".*"],
        "partitions": [{"name": "cpu", "scheduler": "local", "launcher": "mpirun", "environs": ["builtin"], "max_jobs": 1}],
    }],
}
