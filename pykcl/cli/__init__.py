"""`pykcl …`: one file per verb, click on the surface, exit codes 0 clean, 2 usage, 70 crash, 78 configuration.

May import everything below it; imports boto3, moto and rich only inside the verb that needs them.
"""
