# SPDX-License-Identifier: Apache-2.0
"""ReFrame tests: trains on ranks x devices, checks the verdict, and records the rate.

    reframe -C scripts/reframe/settings.py -c scripts/reframe/lockstep.py -r
    reframe ... -S program=/path/to/lockstep -S arguments='--data synthetic --epochs 1'
"""
import reframe as rfm
import reframe.utility.sanity as sn


class LockstepBase(rfm.RunOnlyRegressionTest):
    program = variable(str, value="lockstep")
    arguments = variable(str, value="--data auto --epochs 2")
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    time_limit = "10m"
    tags = {"lockstep"}

    @run_before("run")
    def set_command(self):
        self.executable = self.program

    @sanity_function
    def verdict(self):
        return sn.all([sn.assert_eq(sn.count(sn.findall(r"^VERIFICATION: PASSED\b", self.stdout)), 1),
                       sn.assert_not_found(r"^VERIFICATION: FAILED", self.stdout)])


@rfm.simple_test
class LockstepTrain(LockstepBase):
    """k devices, and what one device computes: the program compares."""
    ranks = parameter([1, 2])
    devices = parameter([1, 2])

    @run_before("run")
    def set_size(self):
        self.num_tasks = self.ranks
        self.executable_opts = ["train", *self.arguments.split(), "--devices", str(self.devices)]

    @performance_function("images/s", perf_key="rate")
    def rate(self):
        return sn.extractsingle(r"^FOM: (?P<rate>[0-9.]+) images/s$", self.stdout, "rate", float)


@rfm.simple_test
class LockstepVerify(LockstepBase):
    """The program's own checks, over the ranks of the job."""
    ranks = parameter([1, 2])

    @run_before("run")
    def set_size(self):
        self.num_tasks = self.ranks
        self.executable_opts = ["verify", "--quick"]
