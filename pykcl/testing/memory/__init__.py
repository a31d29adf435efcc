"""DynamoDB and Kinesis in memory: they evaluate the very requests that would go to AWS, with faults on demand."""
