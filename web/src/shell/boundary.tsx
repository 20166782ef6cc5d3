import { Component, type ComponentChildren } from 'preact';

interface Props {
  /** What is shown in place of what could not be drawn. */
  otherwise: (error: Error) => ComponentChildren;
  children: ComponentChildren;
}

/** Keeps a part that cannot be drawn from taking the page along. */
export class Boundary extends Component<Props, { error: Error | null }> {
  override state = { error: null };

  static override getDerivedStateFromError(error: Error) {
    return { error };
  }

  override render() {
    const { error } = this.state;
    return error === null ? this.props.children : this.props.otherwise(error);
  }
}
